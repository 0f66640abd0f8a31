"""Whole weights: differences and replacements, of norms too."""

import numpy as np
import pytest
import torch

from lib_lora.networks.compose import compose, network_type_of
from lib_lora.networks.contract import LayerNetwork, misfit, shapes_of
from lib_lora.networks.full import FULL, SET_WEIGHT, with_bias
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.lora import LORA
from lib_lora.networks.oft import OFT
from tests.halves import HALVES
from tests.networks.small import (
    LAYERS,
    STRENGTHS,
    a_layer,
    assert_half_precision,
    assert_live_is_baked,
    random_tensors,
    shape_of,
)


@pytest.fixture(params=LAYERS)
def layer(request):
    return a_layer(request.param)


@pytest.fixture(params=["weight", "weight and bias", "replaced"])
def case(request, layer):
    shape = shape_of(layer).weight
    if request.param == "replaced":
        return SET_WEIGHT, random_tensors({"set_weight": shape})
    sizes = {"diff": shape} | ({} if request.param == "weight" else {"diff_b": shape[:1]})
    return FULL, random_tensors(sizes)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_delta_is_the_difference_and_strength_is_linear(layer, case, strength):
    kind, tensors = case
    base = layer.weight.numpy()
    if kind is FULL:
        weight = strength * tensors["diff"].numpy()
    else:
        weight = strength * (tensors["set_weight"].numpy() - base)
    found = compose(layer.weight, [(LayerNetwork(kind, tensors), strength)])
    np.testing.assert_allclose(found.weight.numpy(), weight, rtol=1e-14)
    if "diff_b" in tensors:
        np.testing.assert_allclose(found.bias.numpy(), strength * tensors["diff_b"].numpy())
    else:
        assert found.bias is None


def test_live_is_baked(layer, case):
    kind, tensors = case
    assert_live_is_baked(kind, tensors, layer)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_costs_a_few_roundings(layer, case, dtype):
    kind, tensors = case
    assert_half_precision(kind, tensors, layer, dtype, roundings=4)


def test_extract_keeps_the_whole_difference(layer):
    difference = random_tensors({"x": layer.weight.shape})["x"]
    found = FULL.delta(FULL.extract(difference, 1), layer.weight, shape_of(layer)).weight
    assert torch.equal(found, difference)


@pytest.mark.parametrize(
    ("kind", "shapes", "layer", "reason"),
    [
        (FULL, {"diff": (12, 9)}, (12, 8), "its delta has the shape (12, 9)"),
        (FULL, {"diff": (12, 8)}, (8, 12), "its delta has the shape (12, 8)"),
        (FULL, {"diff": (12, 8), "diff_b": (8,)}, (12, 8), "no common number of rows"),
        (FULL, {"diff": (12, 8), "diff_b": ()}, None, "no common number of rows"),
        (FULL, {"diff": ()}, (12, 8), "its delta has the shape"),
        (FULL, {"diff": (12, 8)}, (12,), "its delta has the shape"),
        (SET_WEIGHT, {"set_weight": (12, 4)}, (12, 8), "its delta has the shape (12, 4)"),
        (SET_WEIGHT, {"set_weight": (12, 8), "diff_b": (12,)}, (12, 8), "not supported"),
    ],
)
def test_a_misfit_is_told(kind, shapes, layer, reason):
    assert reason in misfit(kind, shapes, layer)


BIASED = {
    "lora": (LORA, {"lora_down.weight": (3, 8), "lora_up.weight": (12, 3)}),
    "oft": (OFT, {"oft_blocks": (3, 4, 4)}),  # one that prepares
    "ia3": (IA3, {"weight": (12,), "on_input": ()}),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_can_go_with_another_type(name):
    kind, sizes = BIASED[name]
    biased, layer = with_bias(kind), a_layer("linear")
    plain, bias = random_tensors(sizes), random_tensors({"diff_b": (12,)})
    assert misfit(biased, shapes_of(plain | bias), (12, 8)) is None
    found = biased.delta(plain | bias, layer.weight, shape_of(layer))
    assert torch.equal(found.bias, bias["diff_b"])
    assert torch.equal(found.weight, kind.delta(plain, layer.weight, shape_of(layer)).weight)
    assert_live_is_baked(biased, plain | bias, layer)
    assert "diff_b has the shape (8,)" in misfit(biased, {**sizes, "diff_b": (8,)}, (12, 8))
    if kind is LORA:
        assert network_type_of(shapes_of(plain | bias)).id == biased.id


def test_a_point_kernel_and_a_matrix_are_the_same():
    tensors = random_tensors({"diff": (12, 8, 1, 1)})
    layer = a_layer("linear")
    assert misfit(FULL, shapes_of(tensors), (12, 8)) is None
    assert FULL.delta(tensors, layer.weight, shape_of(layer)).weight.shape == (12, 8)
