"""Tensors of one layer under every dialect's names: the same delta, and a reason for each tensor that is left."""

import pytest
import torch

from lib_lora.families.sd1 import SD1
from lib_lora.families.table import Layer, Placement
from lib_lora.formats.network_file import read_network
from lib_lora.formats.stream import write_tensors
from lib_lora.networks.compose import compose

PATH = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
FLAT = PATH.replace(".", "_")
ORIGINAL = "middle_block.1.transformer_blocks.0.attn1.to_q"
KEY = f"model.diffusion_model.{ORIGINAL}.weight"
LAYER, CONV, SQUARE = f"unet.{PATH}", "unet.conv_in", "unet.conv_out"
LAYERS = {
    LAYER: Layer("unet", PATH, Placement(KEY), None, (6, 5)),
    CONV: Layer("unet", "conv_in", Placement("model.diffusion_model.x.weight"), None, (6, 5, 3, 3)),
    SQUARE: Layer("unet", "conv_out", Placement("model.diffusion_model.y"), None, (6, 6, 3, 3)),
}
DRAW = torch.Generator().manual_seed(4)
DOWN = torch.randn(2, 5, generator=DRAW, dtype=torch.float64)
UP = torch.randn(6, 2, generator=DRAW, dtype=torch.float64)
SCALE = 0.375
ALPHA = torch.tensor(2 * SCALE)


def read(tmp_path, tensors, layers=LAYERS):
    file = tmp_path / "style.safetensors"
    write_tensors(file, tensors, {})
    return read_network(file, layers, SD1.components)


def delta(network, layer_id=LAYER, base=None):
    if base is None:
        base = torch.zeros(LAYERS[layer_id].shape, dtype=torch.float64)
    return compose(base, [(network.layers[layer_id], 1.0)]).weight


@pytest.mark.parametrize(
    ("dialect", "down", "up", "scale"),
    [
        ("kohya", f"lora_unet_{FLAT}.lora_down.weight", f"lora_unet_{FLAT}.lora_up.weight", ""),
        (
            "diffusers",
            *(f"unet.{PATH}.lora.down.weight", f"unet.{PATH}.lora.up.weight", ""),
        ),
        (
            "diffusers",
            f"unet.{PATH.replace('.to_q', '.processor.to_q')}_lora.down.weight",
            f"unet.{PATH.replace('.to_q', '.processor.to_q')}_lora.up.weight",
            "",
        ),
        ("peft", f"{PATH}.lora_A.default.weight", f"{PATH}.lora_B.default.weight", ""),
        (
            "comfy",
            *(f"diffusion_model.{ORIGINAL}.lora_A.weight",),
            *(f"diffusion_model.{ORIGINAL}.lora_B.weight",),
            f"diffusion_model.{ORIGINAL}.alpha",
        ),
        (
            "onetrainer",
            *(f"{ORIGINAL}.lora_A.weight", f"{ORIGINAL}.lora_B.weight", f"{ORIGINAL}.alpha"),
        ),
        (
            "lycoris",
            *(f"lycoris_{FLAT}.lora_down.weight", f"lycoris_{FLAT}.lora_up.weight"),
            f"lycoris_{FLAT}.alpha",
        ),
    ],
)
def test_each_dialect_gives_its_delta(tmp_path, dialect, down, up, scale):
    network = read(tmp_path, {down: DOWN, up: UP} | ({scale: ALPHA} if scale else {}))
    assert (network.dialect, network.unmatched) == (dialect, ())
    expected = (SCALE if scale else 1.0) * UP @ DOWN  # no alpha: alpha = rank
    torch.testing.assert_close(delta(network), expected)
    assert not torch.allclose(delta(network), 1.05 * expected)


@pytest.mark.parametrize(
    ("name", "suffixes"),
    [
        # HCP-Diffusion multiplies by what it stores as alpha, which is alpha / rank.
        (f"lora:{PATH}.___", ("layer.W_down", "layer.W_up", "alpha")),
        (f"lora_unet_{FLAT}", ("lora_down.weight", "lora_up.weight", "scale")),
    ],
)
def test_a_scale_is_alpha_over_rank(tmp_path, name, suffixes):
    tensors = (DOWN, UP, torch.tensor(SCALE))
    network = read(
        tmp_path,
        {f"{name}.{suffix}": tensor for suffix, tensor in zip(suffixes, tensors, strict=True)},
    )
    assert network.unmatched == ()
    torch.testing.assert_close(delta(network), SCALE * UP @ DOWN)


@pytest.mark.parametrize(
    ("layer_id", "name", "factors", "magnitude"),
    [
        (LAYER, PATH, (DOWN, UP), (6,)),
        (
            CONV,
            "conv_in",
            (torch.randn(2, 5, 3, 3, generator=DRAW).double(), UP[:, :, None, None]),
            (1, 6, 1, 1),
        ),
        (
            SQUARE,
            "conv_out",
            (torch.randn(2, 6, 3, 3, generator=DRAW).double(), UP[:, :, None, None]),
            (1, 6, 1, 1),
        ),
    ],
    ids=["linear", "conv", "square conv"],
)
def test_pefts_magnitudes_are_per_output(tmp_path, layer_id, name, factors, magnitude):
    down, up = factors
    wanted = torch.rand(6, generator=DRAW, dtype=torch.float64) + 0.5
    network = read(
        tmp_path,
        {
            f"unet.{name}.lora_A.weight": down,
            f"unet.{name}.lora_B.weight": up,
            f"unet.{name}.lora_magnitude_vector": wanted.reshape(magnitude),
        },
    )
    assert network.unmatched == ()
    base = torch.randn(LAYERS[layer_id].shape, generator=DRAW, dtype=torch.float64)
    moved = base.flatten(1) + up.flatten(1) @ down.flatten(1)
    expected = moved / moved.norm(dim=1, keepdim=True) * wanted[:, None]
    found = base + delta(network, layer_id, base)
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-6, atol=1e-6)


def test_of_two_names_of_a_layer_the_first_is_taken(tmp_path):
    first = {f"lora_unet_{FLAT}.lora_down.weight": DOWN, f"lora_unet_{FLAT}.lora_up.weight": UP}
    second = {f"unet.{PATH}.lora_A.weight": DOWN, f"unet.{PATH}.lora_B.weight": -UP}
    network = read(tmp_path, first | second)
    assert {entry.tensor for entry in network.unmatched} == second.keys()
    assert all("already names" in entry.reason for entry in network.unmatched)
    torch.testing.assert_close(delta(network), UP @ DOWN)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("bundle_emb.cat.string_to_param.*", "bundled embedding"),
        ("lora_unet_nowhere.alpha", "no layer of this name"),
        ("base_model.model.conv_in.weight", "no supported network type|is missing"),
    ],
)
def test_every_tensor_that_is_left_has_a_reason(tmp_path, key, reason):
    network = read(tmp_path, {key: torch.zeros(1), f"lora_unet_{FLAT}.diff": torch.zeros(6, 5)})
    (left,) = network.unmatched
    assert left.tensor == key
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(left.reason)


def test_a_layer_with_a_tensor_that_is_not_understood_is_left_whole(tmp_path):
    names = [f"unet.{PATH}.lora_{end}" for end in ("A.weight", "B.weight", "A.bias")]
    other = {"lora_unet_conv_in.diff": torch.zeros(6, 5, 3, 3)}
    tensors = dict(zip(names, (DOWN, UP, torch.zeros(6)), strict=True))
    network = read(tmp_path, tensors | other)
    assert network.layers.keys() == {CONV}
    assert {entry.tensor for entry in network.unmatched} == set(names)
    assert all("lora_A.bias" in entry.reason for entry in network.unmatched)


NORM = "unet.conv_norm_out"
BIASES = {
    f"unet.{PATH}.lora_A.weight": DOWN,
    f"unet.{PATH}.lora_B.weight": UP,
    f"unet.{PATH}.lora_B.bias": torch.ones(6),
    "lora_unet_conv_in.diff": torch.ones(6, 5, 3, 3),
    "lora_unet_conv_in.diff_b": torch.ones(6),
    "lora_unet_conv_norm_out.w_norm": torch.ones(6),
    "lora_unet_conv_norm_out.b_norm": torch.ones(6),
}


@pytest.mark.parametrize("there", [False, True], ids=["no bias", "bias"])
def test_a_change_of_a_bias_that_the_layer_lacks_is_named(tmp_path, there):
    layers = LAYERS | {NORM: Layer("unet", "conv_norm_out", Placement("n.weight"), None, (6,))}
    if there:
        layers = {
            id_: Layer(one.component, one.path, one.weight, Placement(f"{id_}.bias"), one.shape)
            for id_, one in layers.items()
        }
    network = read(tmp_path, BIASES, layers)
    assert network.layers.keys() == {LAYER, CONV, NORM}
    for layer_id, part in network.layers.items():
        base = torch.zeros(layers[layer_id].shape, dtype=torch.float64)
        change = compose(base, [(part, 1.0)])
        assert bool(change.weight.any())
        assert (change.bias is not None) == there
        if there:
            assert torch.equal(change.bias, torch.ones(6, dtype=torch.float64))
    homeless = {entry.tensor: entry.reason for entry in network.unmatched}
    ends = ("lora_B.bias", "diff_b", "b_norm")
    assert homeless.keys() == (
        {key for key in BIASES if key.endswith(ends)} if not there else set()
    )
    assert set(homeless.values()) <= {"the layer has no bias in this base"}
