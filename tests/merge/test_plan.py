"""What a plan tells before anything is written."""

import json
import os

import pytest
import torch

from lib_lora.errors import FileFormatError, UnmatchedError, UsageError
from lib_lora.formats.stream import write_tensors
from lib_lora.merge.bake import bake
from lib_lora.merge.plan import LoraChoice, plan_merge
from tests.merge.small import CONV, LAYERS, QUERY, SHAPES, TEXT, lora_tensors


def test_strengths_follow_the_component_and_zero_touches_nothing(make_base, make_lora):
    base, lora = make_base(torch.float16), make_lora(lora_tensors([QUERY, TEXT], seed=1))

    def touched(choice):
        changes = plan_merge(base, [choice]).changes.values()
        return {c.layer.id: c.uses[0][1] for (c,) in changes}

    assert touched(LoraChoice(lora, 0.8)) == {QUERY: 0.8, TEXT: 0.8}
    assert touched(LoraChoice(lora, 0.8, 0.25)) == {QUERY: 0.8, TEXT: 0.25}
    assert touched(LoraChoice(lora, 0.8, 0.0)) == {QUERY: 0.8}
    assert touched(LoraChoice(lora, 0.0, 0.5)) == {TEXT: 0.5}
    assert plan_merge(base, [LoraChoice(lora, 0.0)]).warnings == (
        "lora.safetensors has strength 0 and changes nothing.",
    )


def test_output_bytes_is_the_size_apart_from_metadata(make_base, make_lora, tmp_path):
    lora = make_lora(lora_tensors([QUERY], seed=1))
    for dtype in ("same", "fp32"):
        plan = plan_merge(make_base(torch.float16), [LoraChoice(lora)], dtype)
        written = bake(plan, tmp_path / "out.safetensors").output_bytes
        assert 0 <= written - plan.output_bytes < 4096


def test_what_is_left_out_is_named(make_base, tmp_path):
    network = lora_tensors([QUERY], seed=1)[QUERY]
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    file = tmp_path / "odd.safetensors"
    tensors = {f"{name}.{suffix}": tensor for suffix, tensor in network.items()}
    write_tensors(file, {**tensors, "lora_unet_nowhere.alpha": torch.tensor(1.0)}, {})
    (warning,) = plan_merge(make_base(torch.float16), [LoraChoice(file)]).warnings
    assert "1 tensors of odd.safetensors are left out" in warning
    assert "lora_unet_nowhere.alpha" in warning


def test_the_base_is_read_by_its_header_alone(tmp_path, make_lora):
    """A base that claims 64 GB of zeros which no disk holds (a sparse file) is planned like any other."""
    entries, place = {}, 0
    for key, shape in {**SHAPES, "padding": (2**34,)}.items():
        size = 4 * torch.Size(shape).numel()
        entries[key] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(entries).encode()
    file = tmp_path / "sparse.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + place)
    plan = plan_merge(file, [LoraChoice(make_lora(lora_tensors([CONV], seed=1)))])
    assert list(plan.changes) == [LAYERS[CONV].weight.key]
    assert plan.output_bytes > 64e9


def test_what_cannot_be_is_refused_in_a_sentence(make_base, make_lora, tmp_path):
    base, lora = make_base(torch.float16), make_lora(lora_tensors([QUERY], seed=1))
    with pytest.raises(UsageError, match=r"'fp61'.*Did you mean 'fp16'"):
        plan_merge(base, [LoraChoice(lora)], dtype="fp61")
    with pytest.raises(UsageError, match=r"'alive'.*Did you mean 'live'"):
        plan_merge(base, [LoraChoice(lora)], mode="alive")
    with pytest.raises(FileFormatError, match="no file"):
        plan_merge(tmp_path / "none.safetensors", [LoraChoice(lora)])
    with pytest.raises(UnmatchedError, match="fits this base"):
        plan_merge(base, [LoraChoice(base)])
