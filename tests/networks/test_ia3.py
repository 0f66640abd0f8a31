"""IA3 against the scaled rows and columns, and what it is told of its side."""

import numpy as np
import pytest
import torch

from lib_lora.networks.contract import CreateOptions, misfit, shapes_of
from lib_lora.networks.ia3 import IA3
from tests.networks.small import (
    a_layer,
    random_tensors,
    shape_of,
)

SIDES = {"output": False, "input": True}


@pytest.fixture(params=["linear", "square", "conv1x1", "conv3x3"])
def layer(request):
    return a_layer(request.param)


@pytest.fixture(params=SIDES)
def tensors(request, layer):
    side = SIDES[request.param]
    width = layer.weight.shape[1 if side else 0]
    size = (1, width, 1, 1) if layer.weight.ndim == 4 else (width,)
    return {**random_tensors({"weight": size}), "on_input": torch.tensor(side)}


def test_delta_is_the_weight_with_scaled_rows_or_columns(layer, tensors):
    weight, factors = layer.weight.numpy(), tensors["weight"].numpy().ravel()
    which = "oikl,i->oikl" if tensors["on_input"] else "oikl,o->oikl"
    wide = weight if weight.ndim == 4 else weight[..., None, None]
    right = np.einsum(which, wide, factors).reshape(weight.shape)
    found = IA3.delta(tensors, layer.weight, shape_of(layer))
    np.testing.assert_allclose(found.weight.numpy(), right, rtol=1e-14)
    assert found.bias is None


def test_the_length_decides_the_side_before_the_flag():
    layer = a_layer("linear")
    wrong = {**random_tensors({"weight": (8,)}), "on_input": torch.tensor(False)}
    right = {**wrong, "on_input": torch.tensor(True)}
    found = [IA3.delta(given, layer.weight, shape_of(layer)).weight for given in (wrong, right)]
    assert torch.equal(*found)


def test_a_fresh_network_scales_the_rows_of_its_layer(layer):
    fresh = IA3.create(shape_of(layer), CreateOptions(dtype=torch.float64), torch.Generator())
    assert misfit(IA3, shapes_of(fresh), shape_of(layer).weight) is None
    assert fresh["weight"].numel() == layer.weight.shape[0]
    assert not bool(fresh["on_input"])


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        ({"weight": (9,), "on_input": ()}, (12, 8), "9 factors"),
        ({"weight": (12, 8), "on_input": ()}, (12, 8), "no row of factors"),
        ({"weight": (0,), "on_input": ()}, (12, 8), "no row of factors"),
        ({"weight": (12,), "on_input": (12,)}, (12, 8), "not one value"),
        ({"weight": (12,), "on_input": ()}, (12,), "does not apply"),
        ({"weight": (12,), "on_input": (), "alpha": ()}, (12, 8), "alpha"),
    ],
)
def test_a_misfit_is_told(shapes, layer, reason):
    assert reason in misfit(IA3, shapes, layer)
