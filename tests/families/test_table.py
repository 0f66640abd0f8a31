"""How a part of a checkpoint tensor gives the shape of a layer."""

import pytest

from lib_lora.families.table import Component, Part, Row, Signature

CASES = [
    (Part(), (20, 12, 3, 3), (20, 12, 3, 3)),
    (Part(index=1, of=3), (36, 12), (12, 12)),
    (Part(transpose=True), (12, 20), (20, 12)),
    (Part(pointwise=True), (20, 12, 1, 1), (20, 12)),
    (Part(swap_halves=True), (20, 12), (20, 12)),
]


@pytest.mark.parametrize(("part", "stored", "shape"), CASES)
def test_the_shape_of_a_part(part, stored, shape):
    assert part.layer_shape(stored) == shape


def test_a_layer_is_there_where_its_weight_is():
    rows = (Row("a", "x.weight", "x.bias", "IN00"), Row("b", "y.weight", "y.bias"))
    component = Component("unet", "lora_unet", "unet", "net.", lambda: rows)
    (layer,) = component.expand({"net.x.weight": (3, 2), "net.y.bias": (3,)})
    assert (layer.id, layer.shape, layer.block) == ("unet.a", (3, 2), "IN00")
    assert layer.weight.key == "net.x.weight"
    assert layer.bias is None


def test_a_bias_takes_the_rows_of_its_weight_and_nothing_else_of_its_part():
    fused = Row("q", "qkv.weight", "qkv.bias", part=Part(index=1, of=3))
    matrix = Row("p", "p.weight", "p.bias", part=Part(pointwise=True))
    swapped = Row("s", "s.weight", "s.bias", part=Part(swap_halves=True))
    shapes = {"qkv.weight": (6, 4), "p.weight": (4, 4, 1, 1), "s.weight": (4, 4)}
    shapes |= {"qkv.bias": (6,), "p.bias": (4,), "s.bias": (4,)}
    layers = Component("unet", "", "", "", lambda: (fused, matrix, swapped)).expand(shapes)
    assert [layer.bias.part for layer in layers] == [fused.part, Part(), swapped.part]


@pytest.mark.parametrize(("key", "swapped"), [("net.more", False), ("net.other", True)])
def test_a_part_may_hang_on_a_key_that_the_checkpoint_lacks(key, swapped):
    row = Row("a", "x.weight", "x.bias", lacking=("more", Part(swap_halves=True)))
    component = Component("unet", "lora_unet", "unet", "net.", lambda: (row,))
    (layer,) = component.expand({"net.x.weight": (4, 2), "net.x.bias": (4,), key: (1,)})
    assert layer.weight.part.swap_halves is swapped
    assert layer.bias.part.swap_halves is swapped


@pytest.mark.parametrize(
    ("shapes", "fits"),
    [
        ({"conv": (8, 4, 3, 3)}, True),
        ({"conv": (8, 9, 3, 3)}, False),
        ({"conv": (8, 4)}, False),
        ({}, False),
        ({"conv": (8, 4, 3, 3), "other": (1,)}, False),
    ],
)
def test_a_signature_is_keys_numbers_of_dimensions_and_a_few_sizes(shapes, fits):
    assert Signature({"conv": (None, 4, None, None)}, absent=("other",)).fits(shapes) is fits
