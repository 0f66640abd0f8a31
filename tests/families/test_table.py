"""How a part of a checkpoint tensor gives the shape of a layer."""

import pytest

from lib_lora.families.table import Component, Part, Row

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
    component = Component("unet", "lora_unet", "unet", "net.", rows)
    (layer,) = component.expand({"net.x.weight": (3, 2), "net.y.bias": (3,)})
    assert (layer.id, layer.shape, layer.block) == ("unet.a", (3, 2), "IN00")
    assert layer.weight.key == "net.x.weight"
    assert layer.bias is None
