"""Changes of normalisation layers."""

import numpy as np
import pytest
import torch
from torch import nn

from lib_lora.apply.branch import Branch
from lib_lora.apply.hooks import attach
from lib_lora.apply.strengths import Strengths
from lib_lora.networks.contract import CreateOptions, LayerNetwork, misfit
from lib_lora.networks.norm import NORM
from tests.halves import HALVES
from tests.networks.small import (
    a_layer,
    an_input,
    assert_half_precision,
    assert_live_is_baked,
    baked,
    random_tensors,
    shape_of,
)


@pytest.fixture(params=["layer norm", "group norm"])
def layer(request):
    return a_layer(request.param)


@pytest.fixture(params=[("w_norm", "b_norm"), ("w_norm",)], ids=["weight and bias", "weight"])
def tensors(request):
    return random_tensors(dict.fromkeys(request.param, (12,)))


def normalized(layer, x):
    """Return the normalised input in NumPy, channels last."""
    if isinstance(layer, nn.LayerNorm):
        axes, grouped = (-1,), x
    else:
        axes, grouped = (2, 3, 4), x.reshape(2, 4, 3, 5, 5)
    mean, variance = grouped.mean(axes, keepdims=True), grouped.var(axes, keepdims=True)
    plain = ((grouped - mean) / np.sqrt(variance + layer.eps)).reshape(x.shape)
    return plain if isinstance(layer, nn.LayerNorm) else plain.transpose(0, 2, 3, 1)


def test_output_is_the_normalised_input_scaled_and_shifted(layer, tensors):
    x = an_input(layer)
    found = NORM.output(tensors, x, layer, layer(x)).numpy()
    found = found if isinstance(layer, nn.LayerNorm) else found.transpose(0, 2, 3, 1)
    right = normalized(layer, x.numpy()) * tensors["w_norm"].numpy()
    if "b_norm" in tensors:
        right = right + tensors["b_norm"].numpy()
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-13)


def test_live_is_baked(layer, tensors):
    assert_live_is_baked(NORM, tensors, layer)


def test_a_branch_takes_norms(layer, tensors):
    x, network = an_input(layer), LayerNetwork(NORM, tensors)
    before, strengths = layer(x), Strengths(1)
    right = baked(NORM, tensors, layer, 0.7)(x)
    handle = attach(layer, Branch(layer, [(0, network)], strengths))
    assert torch.equal(layer(x), before)
    strengths.set([0.7])
    torch.testing.assert_close(layer(x), right, rtol=0, atol=1e-13)
    assert float((before - right).abs().max()) > 0.1
    handle.remove()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_costs_a_few_roundings(layer, tensors, dtype):
    assert_half_precision(NORM, tensors, layer, dtype, roundings=4)


def test_gradients_reach_both_vectors(layer):
    held = random_tensors({"w_norm": (12,), "b_norm": (12,)})
    for tensor in held.values():
        tensor.requires_grad_(True)
    x = an_input(layer)
    NORM.output(held, x, layer, layer(x)).square().sum().backward()
    assert all(float(tensor.grad.abs().min()) > 0 for tensor in held.values())


def test_a_fresh_network_is_the_identity(layer):
    fresh = NORM.create(shape_of(layer), CreateOptions(dtype=torch.float64), torch.Generator())
    x = an_input(layer)
    assert not NORM.output(fresh, x, layer, layer(x)).any()


def test_another_module_is_refused():
    layer = a_layer("linear")
    x = an_input(layer)
    with pytest.raises(TypeError, match="Linear is neither a layer norm nor a group norm"):
        NORM.output(random_tensors({"w_norm": (12,)}), x, layer, layer(x))


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        ({"w_norm": (8,), "b_norm": (12,)}, (12,), "w_norm has the shape (8,)"),
        ({"w_norm": (12,), "b_norm": (8,)}, (12,), "b_norm has the shape (8,)"),
        ({"w_norm": (12,)}, (12, 8), "does not apply"),
    ],
)
def test_a_misfit_is_told(shapes, layer, reason):
    assert reason in misfit(NORM, shapes, layer)
