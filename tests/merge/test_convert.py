"""A network through every dialect and back: the same delta, nothing lost in silence, nothing overwritten."""

import pytest
import torch

from lib_lora.errors import UsageError
from lib_lora.families.sd1 import SD1
from lib_lora.families.sd3 import SD3
from lib_lora.families.sdxl import SDXL
from lib_lora.formats.dialects import layers_of
from lib_lora.formats.hashes import sshs_model_hash
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.merge.convert import DIALECTS, convert
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP
from tests.families.recorded import small

BLOCK = "unet.down_blocks.1.attentions.0.transformer_blocks.0"
# Cross attention reads text of the family's width; by the first of these layers the family is told.
TRAINED = {
    "sd1": (
        f"{BLOCK}.attn2.to_k",
        f"{BLOCK}.attn1.to_q",
        "te1.text_model.encoder.layers.0.mlp.fc1",
    ),
    "sdxl": (
        *(f"{BLOCK}.attn2.to_k", "unet.mid_block.attentions.0.transformer_blocks.9.ff.net.2"),
        *("te1.text_model.encoder.layers.0.mlp.fc1", "te2.text_model.encoder.layers.0.mlp.fc1"),
    ),
    "sd3": (
        *("transformer.transformer_blocks.2.attn.to_k", "transformer.norm_out.linear"),
        *(
            "transformer.transformer_blocks.2.ff.net.2",
            "te3.encoder.block.0.layer.0.SelfAttention.q",
        ),
    ),
}
TEXT_WIDTHS = {"sd1": 768, "sdxl": 2048, "sd3": 8}
FAMILIES = pytest.mark.parametrize("family", [SD1, SDXL, SD3], ids=lambda family: family.id)


def a_network(family, alpha=2.0):
    draw = torch.Generator().manual_seed(2)
    tensors = {}
    for layer_id in TRAINED[family.id]:
        inputs = TEXT_WIDTHS[family.id] if "attn2" in layer_id else 8
        tensors[layer_id] = {
            DOWN: torch.randn(4, inputs, generator=draw),
            UP: torch.randn(8, 4, generator=draw),
            ALPHA: torch.tensor(alpha),
        }
    return tensors


def written(file, family, dialect="kohya", **others):
    tensors = a_network(family, **others)
    write_network(
        *(file, tensors, layers_of(family), family.components, dialect, {"ss_output_name": "style"})
    )
    return tensors


def delta(tensors):
    return (
        float(tensors[ALPHA]) / len(tensors[DOWN]) * tensors[UP].double() @ tensors[DOWN].double()
    )


def check(file, family, tensors):
    """Check that a file holds these deltas, and beyond them nothing but zeros."""
    network = read_network(file, layers_of(family), family.components)
    assert network.unmatched == ()
    for layer_id, layer in network.layers.items():
        parts = {ALPHA: torch.tensor(4.0), **layer.tensors}
        if layer_id in tensors:
            torch.testing.assert_close(delta(parts), delta(tensors[layer_id]), rtol=1e-6, atol=1e-6)
        else:  # what kohya joins with a layer that is trained
            assert not delta(parts).any()
    assert network.layers.keys() >= tensors.keys()


@FAMILIES
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("alpha", [2.0, 3.0], ids=["folds", "rounds"])
def test_there_and_back_is_the_same_delta(tmp_path, family, dialect, alpha):
    source = tmp_path / "style.safetensors"
    tensors = written(source, family, alpha=alpha)
    before = source.read_bytes()
    there = tmp_path / ("there" if dialect == "peft" else "there.safetensors")
    report = convert(source, dialect, there)
    assert (report.family.id, report.unmatched) == (family.id, ())
    check(there, family, tensors)
    convert(there, "kohya", tmp_path / "back.safetensors")
    check(tmp_path / "back.safetensors", family, tensors)
    assert source.read_bytes() == before


def test_metadata_are_kept_and_hashes_are_those_of_the_new_file(tmp_path):
    source, out = tmp_path / "style.safetensors", tmp_path / "out.safetensors"
    written(source, SD1)
    convert(source, "diffusers", out)
    metadata = read_header(out).metadata
    assert metadata["ss_output_name"] == "style"
    assert metadata["sshs_model_hash"] == sshs_model_hash(out) != sshs_model_hash(source)
    assert metadata["modelspec.hash_sha256"] == f"0x{sshs_model_hash(out)}"


def test_alphas_told_in_metadata_become_tensors_and_are_told_no_more(tmp_path):
    written(tmp_path / "style.safetensors", SD1, "diffusers", alpha=3.0)
    assert "lora_adapter_metadata" in read_header(tmp_path / "style.safetensors").metadata
    convert(tmp_path / "style.safetensors", "kohya", tmp_path / "out.safetensors")
    assert "lora_adapter_metadata" not in read_header(tmp_path / "out.safetensors").metadata


def test_what_is_left_out_is_told(tmp_path):
    source = tmp_path / "style.safetensors"
    written(source, SD1)
    with TensorReader(source) as reader:
        tensors = {key: reader.read(key).clone() for key in reader.header.tensors}
    write_tensors(source, {**tensors, "bundle_emb.cat.string_to_param.*": torch.zeros(1)}, {})
    report = convert(source, "diffusers", tmp_path / "out.safetensors")
    assert [entry.reason for entry in report.unmatched] == [
        "a bundled embedding, not a change of a layer"
    ]
    assert report.layers == len(TRAINED["sd1"])


def test_the_base_is_asked_for_where_the_names_fit_several_families(tmp_path):
    source, out = tmp_path / "style.safetensors", tmp_path / "out.safetensors"
    layer_id = f"{BLOCK}.attn1.to_q"
    tensors = {layer_id: {DOWN: torch.ones(1, 8), UP: torch.ones(8, 1)}}
    write_network(source, tensors, layers_of(SD1), SD1.components)
    with pytest.raises(UsageError, match=r"Stable Diffusion 1 and Stable Diffusion 2.*--base"):
        convert(source, "diffusers", out)
    assert not out.exists()


def test_the_base_is_asked_for_where_the_depth_of_the_model_decides(tmp_path):
    source, out = tmp_path / "style.safetensors", tmp_path / "out.safetensors"
    base = tmp_path / "base.safetensors"
    shapes = small("sd3-medium")
    write_tensors(base, {key: torch.zeros(shape) for key, shape in shapes.items()}, {})
    last = "transformer.transformer_blocks.1.norm1_context.linear"
    out_size, inputs = SD3.layers(shapes)[last].shape
    tensors = {last: {DOWN: torch.randn(1, inputs), UP: torch.randn(out_size, 1)}}
    write_network(source, tensors, SD3.layers(shapes), SD3.components, "comfy")
    with pytest.raises(UsageError, match=rf"{last}.*--base"):
        convert(source, "diffusers", out)
    convert(source, "diffusers", out, base)
    with TensorReader(out) as reader:
        up = reader.read(f"{last}.lora_B.weight")
    torch.testing.assert_close(up, tensors[last][UP])


@pytest.mark.parametrize("dialect", ["diffusers", "peft"])
def test_a_dialect_that_cannot_hold_a_layer_names_it(tmp_path, dialect):
    source = tmp_path / "style.safetensors"
    out = tmp_path / ("out" if dialect == "peft" else "out.safetensors")
    written(source, SD1)
    with TensorReader(source) as reader:
        tensors = {key: reader.read(key).clone() for key in reader.header.tensors}
    tensors["lora_unet_conv_in.diff"] = torch.zeros(8, 4, 3, 3)
    write_tensors(source, tensors, {})
    assert not convert(source, "kohya", tmp_path / "kohya.safetensors").unmatched
    with pytest.raises(UsageError, match=r"unet\.conv_in has diff"):
        convert(source, dialect, out)
    assert not out.exists()


def test_inputs_and_folders_are_not_overwritten(tmp_path):
    source = tmp_path / "style.safetensors"
    written(source, SD1)
    before = source.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(source)
    (tmp_path / "folder.safetensors").mkdir()
    for name in ("style.safetensors", "link.safetensors", "folder.safetensors", "x.bin", "no/x"):
        out = tmp_path / name
        with pytest.raises(UsageError):
            convert(source, "diffusers", out)
        with pytest.raises(UsageError):
            convert(tmp_path / "link.safetensors", "diffusers", out)
    assert source.read_bytes() == before
