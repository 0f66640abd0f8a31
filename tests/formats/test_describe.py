"""What a report tells of a network and of a checkpoint."""

import math

import pytest
import torch

from lib_lora.errors import FileFormatError
from lib_lora.families.sd1 import SD1
from lib_lora.formats.describe import describe
from lib_lora.formats.hashes import file_hashes
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.networks.lora import ALPHA, DOWN, UP
from tests.golden_data import golden, shapes_of
from tests.tiny import tiny_checkpoint

LAYERS = SD1.layers(shapes_of(golden("sd15")["original"]))


def pair(rank, alpha):
    return {DOWN: torch.ones(rank, 6), UP: torch.ones(5, rank), ALPHA: torch.tensor(alpha)}


@pytest.fixture
def network(tmp_path):
    """Return a function that writes a network of two UNet layers and one text encoder layer."""

    def write(dialect="kohya", metadata=None):
        file = tmp_path / "style.safetensors"
        tensors = {
            "unet.mid_block.attentions.0.proj_in": pair(4, 3.0),
            "unet.conv_in": pair(16, 8.0),
            "te1.text_model.encoder.layers.0.mlp.fc1": pair(4, 3.0),
        }
        write_network(file, tensors, LAYERS, SD1.components, dialect, metadata)
        return file

    return write


@pytest.mark.parametrize("dialect", ["kohya", "kohya-sgm", "diffusers"])
def test_a_network_without_its_base(network, dialect):
    file = network(dialect)
    report = describe(file)
    assert (report.family, report.dialect, report.types) == ("sd1", dialect, ("lora",))
    assert (report.layers, report.components) == (3, {"unet": 2, "te1": 1})
    assert (report.ranks, report.alphas) == ({"4": 2, "16": 1}, {"3": 2, "8": 1})
    assert (report.unmatched, report.problems) == ((), ())
    assert report.hashes == file_hashes(file)


def test_a_hash_of_another_file_and_another_family_in_the_metadata_are_problems(tmp_path):
    file = tmp_path / "style.safetensors"
    tensors = {f"lora_unet_conv_in.{suffix}": part for suffix, part in pair(4, 4.0).items()}
    told = {"ss_base_model_version": "sdxl_base_v1-0", "sshs_model_hash": "00"}
    write_tensors(file, tensors | {"lora_unet_nowhere.alpha": torch.tensor(1.0)}, told)
    report = describe(file)
    assert [left.tensor for left in report.unmatched] == ["lora_unet_nowhere.alpha"]
    assert [problem.split(" ")[0] for problem in report.problems] == ["1", "Its", "The"]
    assert "sdxl_base_v1-0" in report.problems[1]


def test_a_network_of_another_family_is_told_by_name(tmp_path):
    file = tmp_path / "flux.safetensors"
    write_tensors(file, {"lora_unet_double_blocks_0_img_attn_qkv.alpha": torch.tensor(1.0)}, {})
    report = describe(file)
    assert (report.family, report.layers) == (None, 0)
    assert "Flux" in report.problems[0]
    assert len(report.unmatched) == 1


def test_a_checkpoint(tmp_path):
    report = describe(tiny_checkpoint(tmp_path))
    assert (report.family, report.dialect, report.types) == ("sd1", "original", ())
    assert report.layers == sum(report.components.values())
    assert (
        report.components["te1"] == 2 * 8 + 3
    )  # two layers of eight, two embeddings, the last norm
    assert len(report.unmatched) == 13  # the noise schedule's buffers and position_ids
    assert report.problems == ()


def test_a_checkpoint_whose_metadata_name_another_family_has_a_problem(tmp_path):
    with TensorReader(tiny_checkpoint(tmp_path)) as reader:
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    file = tmp_path / "renamed.safetensors"
    write_tensors(file, tensors, {"modelspec.architecture": "flux-1-dev"})
    (problem,) = describe(file).problems
    assert "flux-1-dev" in problem
    assert "Stable Diffusion 1" in problem


def test_what_is_neither_is_refused(tmp_path):
    file = tmp_path / "other.safetensors"
    write_tensors(file, {"something.else": torch.zeros(1)}, {})
    with pytest.raises(FileFormatError, match=r"other\.safetensors: This is no checkpoint"):
        describe(file)


@pytest.mark.parametrize("dialect", ["kohya", "diffusers"])
def test_the_norm_of_a_block_is_that_of_its_deltas(tmp_path, dialect):
    draw = torch.Generator().manual_seed(0)

    def random_pair(alpha, *kernel):
        down = torch.randn(3, 6, *kernel, generator=draw)
        up = torch.randn(5, 3, *(1 for _ in kernel), generator=draw)
        return {DOWN: down, UP: up, ALPHA: torch.tensor(alpha)}

    tensors = {
        "te1.text_model.encoder.layers.3.mlp.fc1": random_pair(3.0),
        "unet.down_blocks.0.attentions.0.proj_in": random_pair(6.0),
        "unet.down_blocks.0.resnets.0.conv1": random_pair(-1.5, 3, 3),
        "unet.mid_block.attentions.0.proj_in": random_pair(0.0),
    }
    file = tmp_path / "style.safetensors"
    write_network(file, tensors, LAYERS, SD1.components, dialect)

    def square(layer):
        parts = tensors[layer]
        delta = parts[UP].flatten(1).double() @ parts[DOWN].flatten(1).double()
        return float((delta * parts[ALPHA] / 3).pow(2).sum())

    te, first, conv, _ = tensors
    norms = describe(file).block_norms
    assert list(norms) == ["unet IN01", "unet M00", "te1 BASE"]
    assert norms["te1 BASE"] == pytest.approx(math.sqrt(square(te)), rel=1e-5)
    assert norms["unet IN01"] == pytest.approx(math.sqrt(square(first) + square(conv)), rel=1e-5)
    assert norms["unet M00"] == 0.0


def test_the_norm_of_a_block_is_told_whatever_the_type_that_needs_no_base(tmp_path):
    draw = torch.Generator().manual_seed(0)

    def drawn(*size):
        return torch.randn(*size, generator=draw)

    names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    a1, b1, a2, b2 = (drawn(*size) for size in ((5, 3), (3, 6)) * 2)
    w1, w2, full, norm = drawn(2, 3), drawn(5, 4), drawn(5, 6), drawn(7)
    tensors = {
        "unet.down_blocks.0.attentions.0.proj_in": {
            **dict(zip(names, (a1, b1, a2, b2), strict=True)),
            ALPHA: torch.tensor(1.5),
        },
        "unet.mid_block.attentions.0.proj_in": {"lokr_w1": w1, "lokr_w2": w2},
        "te1.text_model.encoder.layers.3.mlp.fc1": {"diff": full},
        "te1.text_model.encoder.layers.3.layer_norm1": {"w_norm": norm, "b_norm": drawn(7)},
    }
    file = tmp_path / "style.safetensors"
    write_network(file, tensors, LAYERS, SD1.components)
    product = (a1.double() @ b1.double()) * (a2.double() @ b2.double()) * (1.5 / 3)
    expected = {
        "unet IN01": product.norm(),
        "unet M00": torch.kron(w1.double(), w2.double()).norm(),
        "te1 BASE": torch.cat([full.flatten(), norm]).double().norm(),
    }
    assert describe(file).block_norms == pytest.approx(
        {block: float(value) for block, value in expected.items()}, rel=1e-5
    )


def test_the_alpha_of_a_pefts_file_is_told_by_the_configuration_beside_it(tmp_path):
    folder = tmp_path / "style"
    tensors = {"unet.mid_block.attentions.0.proj_in": pair(4, 6.0), "unet.conv_in": pair(16, 8.0)}
    write_network(folder, tensors, LAYERS, SD1.components, "peft")
    report = describe(folder / "adapter_model.safetensors")
    assert (report.ranks, report.alphas) == ({"4": 1, "16": 1}, {"6": 1, "8": 1})
    # All factors are 1: the norm of a delta is alpha / rank * rank * sqrt(5 * 6).
    assert report.block_norms["unet M00"] == pytest.approx(6.0 * math.sqrt(30), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "alpha"),
    [("lora_unet_joint_blocks_0_x_block_attn_qkv", "3"), ("joint_blocks.0.x_block.attn.qkv", "1")],
)
def test_three_pairs_saved_as_one_are_told_at_their_own_rank(tmp_path, name, alpha):
    # kohya's alpha is that of one pair, any other dialect's that of all three.
    tensors = {
        DOWN: torch.ones(6, 8),
        UP: torch.block_diag(*[torch.ones(8, 2)] * 3),
        ALPHA: torch.tensor(3.0),
    }
    file = tmp_path / "style.safetensors"
    write_tensors(file, {f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}, {})
    report = describe(file)
    assert (report.layers, report.ranks, report.alphas) == (3, {"2": 3}, {alpha: 3})


def test_a_tensor_with_nan_is_a_problem_and_the_rest_is_told(network):
    file = network()
    content = bytearray(file.read_bytes())
    content[-4:] = b"\xff\xff\xff\xff"  # the last number of the last tensor, in float32
    file.write_bytes(content)
    report = describe(file)
    assert (report.layers, report.block_norms) == (3, {})
    (stale, damage) = report.problems
    assert "sshs_model_hash" in stale
    assert "'lora_unet_mid_block_attentions_0_proj_in.lora_up.weight' holds 1 numbers" in damage
