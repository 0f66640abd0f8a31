"""The right values are computed here in NumPy, in float64, from the tensors that were put into the files."""

import dataclasses
import hashlib
import json
import os
import signal

import numpy as np
import pytest
import torch

from lib_lora.errors import LoraError, UsageError
from lib_lora.families.sd1 import SD1
from lib_lora.families.table import Layer, Part, Placement
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.merge.bake import bake
from lib_lora.merge.plan import Change, LoraChoice, MergePlan, plan_merge
from lib_lora.networks.contract import LayerNetwork
from lib_lora.networks.full import FULL
from lib_lora.networks.lora import LORA
from tests.merge.small import (
    CONV,
    FEED,
    FIRST,
    LAYERS,
    PROJ,
    QUERY,
    TEXT,
    W,
    base_tensors,
    lora_tensors,
)

# (bits of the significand, exponent as frexp tells it of the smallest normal number)
FORMATS = {torch.float16: (11, -13), torch.bfloat16: (8, -125), torch.float32: (24, -125)}


def rounded(exact, dtype):
    """Round float64 to the nearest value of a dtype, ties to even; return it and the distance of neighbours there."""
    bits, smallest = FORMATS[dtype]
    step = 2.0 ** (np.maximum(np.frexp(exact)[1], smallest) - bits)
    return np.rint(exact / step) * step, step


def delta_of(parts):
    up, down = (parts[s].double().numpy() for s in ("lora_up.weight", "lora_down.weight"))
    product = np.einsum("or,ri->oi", up.reshape(len(up), -1), down.reshape(len(down), -1))
    return product * float(parts["alpha"]) / len(down)


def read(file):
    with TensorReader(file) as reader:
        return {key: reader.read(key) for key in reader.header.tensors}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_baked_tensors_are_the_correctly_rounded_sum(make_base, make_lora, tmp_path, dtype):
    first = lora_tensors([CONV, PROJ, QUERY, TEXT], seed=1)
    second = lora_tensors([QUERY, FEED, TEXT], seed=2, rank=16, alpha=16.0)
    choices = [
        LoraChoice(make_lora(first, "one"), 0.8, 0.5),
        LoraChoice(make_lora(second, "two", dialect="diffusers"), -0.3),
    ]
    out = tmp_path / "out.safetensors"
    report = bake(plan_merge(make_base(dtype), choices), out)
    base, baked = base_tensors(dtype), read(out)
    assert report.tensors_touched == 5

    strengths = {"unet": (0.8, -0.3), "te1": (0.5, -0.3)}
    touched = {LAYERS[name].weight.key: name for name in (CONV, PROJ, QUERY, FEED, TEXT)}
    for key, name in touched.items():
        weight = base[key].double().numpy()
        deltas = [
            strength * delta_of(network[name]).reshape(weight.shape)
            for network, strength in zip(
                (first, second), strengths[LAYERS[name].component], strict=True
            )
            if name in network
        ]
        exact = weight + sum(deltas)
        right, step = rounded(exact, dtype)
        found = baked[key].double().numpy()
        assert baked[key].dtype == dtype
        assert np.mean(found == right) >= 0.999, name
        assert np.all(np.abs(found - right) <= step), name
        # Controls: the base differs; a strength off by 5 % is told apart; so is a rounding after each network.
        assert np.mean(base[key].double().numpy() == right) < 0.9
        assert np.mean(rounded(exact + 0.05 * deltas[0], dtype)[0] == right) < 0.99
        if len(deltas) == 2:
            in_turn = rounded(rounded(weight + deltas[0], dtype)[0] + deltas[1], dtype)[0]
            assert np.mean(in_turn == right) < 0.999
    for key in base.keys() - touched.keys():
        assert baked[key].dtype == base[key].dtype
        assert torch.equal(baked[key], base[key]), key


def test_equal_inputs_give_equal_bytes(make_base, make_lora, tmp_path):
    base, lora = make_base(torch.float16), make_lora(lora_tensors([QUERY, TEXT], seed=1))
    outs = [tmp_path / place / "merged.safetensors" for place in ("here", "there")]
    for out in outs:
        out.parent.mkdir()
        report = bake(plan_merge(base, [LoraChoice(lora, 0.8)]), out)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert report.output_bytes == outs[1].stat().st_size
    bake(plan_merge(base, [LoraChoice(lora, 0.84)]), outs[1])
    assert outs[0].read_bytes() != outs[1].read_bytes()


@pytest.mark.parametrize(("asked", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_cast_spares_integers_and_the_schedule(make_base, make_lora, tmp_path, asked, dtype):
    lora = make_lora(lora_tensors([QUERY], seed=1))
    out = tmp_path / "out.safetensors"
    bake(plan_merge(make_base(torch.float16), [LoraChoice(lora)], asked), out)
    for key, tensor in base_tensors(torch.float16).items():
        in_model = tensor.is_floating_point() and key != "betas"
        baked = read(out)[key]
        assert baked.dtype == (dtype if in_model else tensor.dtype), key
        if key != LAYERS[QUERY].weight.key:
            assert torch.equal(baked, tensor.to(baked.dtype)), key


def interrupting(tensors, base, shape):
    signal.raise_signal(signal.SIGINT)
    return LORA.delta(tensors, base, shape)


def test_an_interrupted_write_leaves_nothing(make_base, make_lora, tmp_path):
    lora = make_lora(lora_tensors([CONV, QUERY], seed=1))
    plan = plan_merge(make_base(torch.float16), [LoraChoice(lora)])
    key = LAYERS[QUERY].weight.key
    (change,) = plan.changes[key]
    ((network, strength),) = change.uses
    stopper = LayerNetwork(dataclasses.replace(LORA, delta=interrupting), network.tensors)
    changes = {**plan.changes, key: (Change(change.layer, ((stopper, strength),)),)}
    plan = dataclasses.replace(plan, changes=changes)
    before = sorted(tmp_path.iterdir())
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bake(plan, tmp_path / "out.safetensors")
    finally:
        signal.signal(signal.SIGINT, old)
    assert sorted(tmp_path.iterdir()) == before


def test_an_overflow_names_the_layer_and_leaves_nothing(make_base, make_lora, tmp_path):
    lora = make_lora(lora_tensors([QUERY], seed=1, alpha=1e9))
    plan = plan_merge(make_base(torch.float16), [LoraChoice(lora)])
    with pytest.raises(LoraError, match=f"{QUERY} becomes larger than float16 can hold"):
        bake(plan, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    bake(
        plan_merge(make_base(torch.float16), [LoraChoice(lora)], "fp32"), tmp_path / "o.safetensors"
    )


def test_a_tensor_of_the_base_that_the_new_dtype_cannot_hold_is_named(make_lora, tmp_path):
    """fp16 ends at 65,504; a model with an infinity in it draws black pictures."""
    key = LAYERS[FEED].weight.key
    tensors = base_tensors(torch.float32)
    tensors[key][0, 0] = 70_000.0
    base = tmp_path / "base.safetensors"
    write_tensors(base, tensors, {})
    choices = [LoraChoice(make_lora(lora_tensors([QUERY], seed=1)))]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LoraError, match=r"ff.net.2.weight of the base is larger than float16 can"):
        bake(plan_merge(base, choices, "fp16"), tmp_path / "out.safetensors")
    assert sorted(tmp_path.iterdir()) == before
    bake(plan_merge(base, choices, "bf16"), tmp_path / "out.safetensors")
    # What the base holds already is copied as it is.
    tensors[key][0, 0] = torch.inf
    write_tensors(base, tensors, {})
    bake(plan_merge(base, choices, "fp16"), tmp_path / "out.safetensors")


def test_a_merge_too_weak_for_its_dtype_is_told(make_base, make_lora, tmp_path):
    weak = make_lora(lora_tensors([QUERY], seed=1, size=0.002))
    out = tmp_path / "out.safetensors"

    def warnings(dtype):
        return bake(plan_merge(make_base(torch.bfloat16), [LoraChoice(weak)], dtype), out).warnings

    assert "rounded back to the base's value" in warnings("bf16")[0]
    assert warnings("fp32") == ()


def test_no_input_is_overwritten_and_bad_names_are_refused(make_base, make_lora, tmp_path):
    base, lora = make_base(torch.float16), make_lora(lora_tensors([QUERY], seed=1))
    plan = plan_merge(base, [LoraChoice(lora)])
    before = base.read_bytes(), lora.read_bytes()
    os.link(base, tmp_path / "hard.safetensors")
    (tmp_path / "soft.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.safetensors").mkdir()
    refused = {
        "base.safetensors": "is an input",
        "lora.safetensors": "is an input",
        "hard.safetensors": "is an input",
        "soft.safetensors": "is a link or a folder",
        "folder.safetensors": "is a link or a folder",
        "missing/out.safetensors": "no folder",
        "out.ckpt": "must be a .safetensors file",
        "con.safetensors": "some system cannot hold",
        "a:b.safetensors": "some system cannot hold",
        ".hidden.safetensors": "some system cannot hold",
        f"{'x' * 200}.safetensors": "some system cannot hold",
    }
    for name, sentence in refused.items():
        with pytest.raises(UsageError, match=sentence):
            bake(plan, tmp_path / name)
    assert before == (base.read_bytes(), lora.read_bytes())


def test_no_file_of_a_peft_folder_that_is_merged_is_overwritten(make_base, tmp_path):
    base = make_base(torch.float16)
    write_network(tmp_path / "peft", lora_tensors([QUERY], seed=1), LAYERS, SD1.components, "peft")
    plan = plan_merge(base, [LoraChoice(tmp_path / "peft")])
    (file,) = (tmp_path / "peft").rglob("*.safetensors")
    before = file.read_bytes()
    with pytest.raises(UsageError, match="is an input"):
        bake(plan, file)
    assert file.read_bytes() == before
    merged = bake(plan, tmp_path / "peft" / "merged.safetensors").file
    (told,) = json.loads(read_header(merged).metadata["sd_merge_recipe"])["networks"]
    assert (told["name"], told["sha256"]) == ("peft", hashlib.sha256(before).hexdigest())


def test_a_full_disk_is_noticed_before_anything_is_written(make_base, make_lora, tmp_path):
    plan = plan_merge(make_base(torch.float16), [LoraChoice(make_lora(lora_tensors([QUERY], 1)))])
    header = plan.base.header
    key, entry = next(iter(header.tensors.items()))
    huge = {**header.tensors, key: entry._replace(shape=(2**40, 2**10))}
    base = dataclasses.replace(plan.base, header=dataclasses.replace(header, tensors=huge))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LoraError, match="The output needs"):
        bake(dataclasses.replace(plan, base=base), tmp_path / "out.safetensors")
    assert sorted(tmp_path.iterdir()) == before


def test_the_recipe_is_in_the_metadata(make_base, make_lora, tmp_path):
    stale = {"modelspec.hash_sha256": "0x1", "modelspec.author": "someone"}
    base = make_base(torch.float16, metadata=stale)
    lora = make_lora(lora_tensors([QUERY], seed=1), "style")
    bake(plan_merge(base, [LoraChoice(lora, 0.8, 0.25)]), tmp_path / "out.safetensors")
    metadata = read_header(tmp_path / "out.safetensors").metadata
    assert "modelspec.hash_sha256" not in metadata
    assert metadata["modelspec.author"] == "someone"
    assert metadata["modelspec.merged_from"] == "base,style"
    assert metadata["format"] == "pt"
    recipe = json.loads(metadata["sd_merge_recipe"])
    (network,) = recipe["networks"]
    assert (network["name"], network["unet"], network["te"]) == ("style", 0.8, 0.25)
    models = json.loads(metadata["sd_merge_models"])
    assert set(models) == {recipe["primary_model_hash"], network["sha256"]}
    assert str(tmp_path) not in json.dumps(metadata)


TENSORS = ("weight", "bias")
IN = "unet.conv_in"
NORM = "unet.down_blocks.0.resnets.0.norm1"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_biases_and_norms_are_baked_too(make_lora, tmp_path, dtype):
    draw = torch.Generator().manual_seed(0)
    norm = {f"{FIRST}0.in_layers.0.{name}": torch.randn(W, generator=draw) for name in TENSORS}
    base = base_tensors(dtype) | {key: tensor.to(dtype) for key, tensor in norm.items()}
    write_tensors(tmp_path / "base.safetensors", base, {})
    layers = SD1.layers({key: tuple(tensor.shape) for key, tensor in base.items()})
    sizes = {
        IN: {"diff": (W, 4, 3, 3), "diff_b": (W,)},
        NORM: {"w_norm": (W,), "b_norm": (W,)},
    }
    network = {
        name: {s: 0.03 * torch.randn(size, generator=draw) for s, size in parts.items()}
        for name, parts in sizes.items()
    }
    write_network(tmp_path / "lora.safetensors", network, layers, SD1.components)
    choices = [
        LoraChoice(tmp_path / "lora.safetensors", 0.7),
        LoraChoice(make_lora(lora_tensors([IN], seed=1), "other")),
    ]
    report = bake(plan_merge(tmp_path / "base.safetensors", choices), tmp_path / "out.safetensors")
    assert report.tensors_touched == 4
    assert report.warnings == ()
    found = read(tmp_path / "out.safetensors")
    for name, suffix, place in (
        (IN, "diff_b", layers[IN].bias),
        (NORM, "w_norm", layers[NORM].weight),
        (NORM, "b_norm", layers[NORM].bias),
    ):
        before = base[place.key].double().numpy()
        delta = 0.7 * network[name][suffix].double().numpy()
        right, step = rounded(before + delta, dtype)
        after = found[place.key].double().numpy()
        assert np.mean(after == right) >= 0.99, suffix
        assert np.all(np.abs(after - right) <= step), suffix
        # Controls: the base differs; a strength off by 5 % is told apart.
        assert np.mean(before == right) < 0.1
        assert np.mean(rounded(before + 1.05 * delta, dtype)[0] == right) < 0.9


def test_a_bias_without_a_place_is_told(make_base, make_lora, tmp_path):
    lora = make_lora({QUERY: {"diff": torch.ones(W, W), "diff_b": torch.ones(W)}})
    plan = plan_merge(make_base(torch.float32), [LoraChoice(lora, 0.5)])
    assert list(plan.changes) == [LAYERS[QUERY].weight.key]
    (warning,) = plan.warnings
    assert "1 tensors of lora.safetensors are left out" in warning
    assert "attn1_to_q.diff_b': the layer has no bias in this base" in warning
    bake(plan, tmp_path / "out.safetensors")
    key = LAYERS[QUERY].weight.key
    changed = read(tmp_path / "out.safetensors")[key] - base_tensors(torch.float32)[key]
    np.testing.assert_allclose(changed.numpy(), 0.5, atol=1e-6)


def test_a_bias_is_changed_where_it_lies(tmp_path):
    draw = torch.Generator().manual_seed(0)
    stored = {
        "k": torch.randn(12, 6, generator=draw, dtype=torch.float64),
        "b": torch.randn(12, generator=draw, dtype=torch.float64),
    }
    base, out = tmp_path / "base.safetensors", tmp_path / "out.safetensors"
    write_tensors(base, stored, {})
    part = Part(index=1, of=3)
    layer = Layer("unet", "x", Placement("k", part), Placement("b", part), (4, 6))
    tensors = {
        "diff": torch.randn(4, 6, generator=draw, dtype=torch.float64),
        "diff_b": torch.randn(4, generator=draw, dtype=torch.float64),
    }
    uses = ((LayerNetwork(FULL, tensors), 0.5),)
    plan = MergePlan(
        base=Checkpoint(base, read_header(base), SD1, {layer.id: layer}),
        choices=(),
        networks=(),
        dtype="same",
        dtypes=dict.fromkeys(stored, torch.float64),
        changes={"k": (Change(layer, uses),), "b": (Change(layer, uses, "bias"),)},
        warnings=(),
    )
    bake(plan, out)
    for key, suffix in (("k", "diff"), ("b", "diff_b")):
        right = add_rows(stored[key].numpy(), 0.5 * tensors[suffix].numpy(), 4)
        np.testing.assert_allclose(read(out)[key].numpy(), right, rtol=1e-14, atol=1e-14)


PARTS = {
    "first of three": (Part(index=0, of=3), (12, 6), (4, 6), lambda w, d: add_rows(w, d, 0)),
    "last of three": (Part(index=2, of=3), (12, 6), (4, 6), lambda w, d: add_rows(w, d, 8)),
    "transposed": (Part(transpose=True), (5, 4), (4, 5), lambda w, d: w + d.T),
    "halves": (
        Part(swap_halves=True),
        (8, 6),
        (8, 6),
        lambda w, d: w + np.concatenate([d[4:], d[:4]]),
    ),
    "pointwise": (Part(pointwise=True), (4, 6, 1, 1), (4, 6), lambda w, d: w + d[..., None, None]),
}


def add_rows(weight, delta, start):
    total = weight.copy()
    total[start : start + len(delta)] += delta
    return total


@pytest.mark.parametrize("name", PARTS)
def test_a_layer_is_changed_where_it_lies(tmp_path, name):
    part, stored, shape, expected = PARTS[name]
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(stored, generator=draw, dtype=torch.float64)
    base, out = tmp_path / "base.safetensors", tmp_path / "out.safetensors"
    write_tensors(base, {"k": weight}, {})
    layer = Layer("unet", "x", Placement("k", part), None, shape)
    tensors = {
        "lora_down.weight": torch.randn(2, shape[1], generator=draw, dtype=torch.float64),
        "lora_up.weight": torch.randn(shape[0], 2, generator=draw, dtype=torch.float64),
        "alpha": torch.tensor(2.0),
    }
    assert part.layer_shape(stored) == shape
    plan = MergePlan(
        base=Checkpoint(base, read_header(base), SD1, {layer.id: layer}),
        choices=(),
        networks=(),
        dtype="same",
        dtypes={"k": torch.float64},
        changes={"k": (Change(layer, ((LayerNetwork(LORA, tensors), 0.5),)),)},
        warnings=(),
    )
    bake(plan, out)
    right = expected(weight.numpy(), 0.5 * delta_of(tensors))
    np.testing.assert_allclose(read(out)["k"].numpy(), right, rtol=1e-14, atol=1e-14)
