"""What every network type owes its callers, whatever its formula."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lib_lora.networks.compose import NETWORK_TYPES, compose
from lib_lora.networks.contract import CreateOptions, LayerNetwork, LayerShape

MODULES = {
    "linear": lambda: nn.Linear(12, 20),
    "conv1x1": lambda: nn.Conv2d(12, 20, 1),
    "conv3x3": lambda: nn.Conv2d(12, 20, 3, padding=1),
    "strided": lambda: nn.Conv2d(12, 20, 3, stride=2, padding=1),
    "circular": lambda: nn.Conv2d(12, 20, 3, padding=1, padding_mode="circular"),
}
OPTIONS = CreateOptions(rank=4, alpha=2.0, dtype=torch.float64)


@pytest.fixture(params=NETWORK_TYPES, ids=lambda kind: kind.id)
def kind(request):
    return request.param


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(0)
    return MODULES[request.param]().double()


def shape_of(module):
    return LayerShape(tuple(module.weight.shape))


def fresh(kind, module):
    return kind.create(shape_of(module), OPTIONS, torch.Generator().manual_seed(1))


def trained(kind, module):
    """Return a network off its initial point: every trainable tensor moved at random."""
    draw = torch.Generator().manual_seed(2)
    tensors = fresh(kind, module)
    for suffix in kind.trainable:
        moved = torch.randn(tensors[suffix].shape, generator=draw, dtype=torch.float64)
        tensors[suffix] = tensors[suffix] + 0.3 * moved
    return tensors


def an_input(module):
    draw = torch.Generator().manual_seed(3)
    size = (2, 12, 8, 8) if isinstance(module, nn.Conv2d) else (2, 7, 12)
    return torch.randn(size, generator=draw, dtype=torch.float64)


def with_weight(module, weight):
    with torch.no_grad():
        module.weight.copy_(weight)
    return module


def test_fresh_network_is_the_identity(kind, module):
    delta = kind.delta(fresh(kind, module), module.weight, shape_of(module))
    assert torch.equal(delta.weight, torch.zeros_like(module.weight))


def test_delta_equals_a_formula_written_in_numpy(module):
    (kind,) = (kind for kind in NETWORK_TYPES if kind.id == "lora")
    tensors = trained(kind, module)
    down, up = (tensors[s].numpy() for s in ("lora_down.weight", "lora_up.weight"))
    expected = np.einsum("or,ri->oi", up.reshape(20, 4), down.reshape(4, -1)) * (2.0 / 4)
    delta = kind.delta(tensors, module.weight, shape_of(module)).weight
    np.testing.assert_allclose(delta.numpy().reshape(20, -1), expected, rtol=1e-12)


@pytest.mark.parametrize("strength", [-0.5, 0.0, 0.7, 1.0])
def test_output_equals_the_delta_baked_into_the_weight(kind, module, strength):
    tensors = trained(kind, module)
    x = an_input(module)
    live = module(x) + strength * kind.output(tensors, x, module, module(x))
    uses = [(LayerNetwork(kind, tensors), strength)]
    baked = with_weight(module, module.weight + compose(module.weight, uses).weight)(x)
    spread = float((baked.max() - baked.min()).detach())
    assert float((live - baked).abs().max()) <= 1e-12 * spread
    # The control: a strength off by 5 % is told apart.
    off = live + 0.05 * (strength or 1.0) * kind.output(tensors, x, module, module(x))
    assert float((off - baked).abs().max()) > 1e-4 * spread


def test_low_rank_equals_delta(kind, module):
    tensors = trained(kind, module)
    factors = kind.low_rank(tensors, shape_of(module))
    product = (factors.up @ factors.down.flatten(1)).reshape(module.weight.shape)
    delta = kind.delta(tensors, module.weight, shape_of(module)).weight
    torch.testing.assert_close(product, delta, rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_trainable_tensor(kind, module):
    tensors = {s: t.detach().clone() for s, t in trained(kind, module).items()}
    for suffix in kind.trainable:
        tensors[suffix].requires_grad_(True)
    x = an_input(module)
    kind.output(tensors, x, module, module(x).detach()).square().sum().backward()
    for suffix in kind.trainable:
        assert float(tensors[suffix].grad.abs().min()) > 0, suffix


def test_composition_is_order_free_and_linear(kind, module):
    one, two = (LayerNetwork(kind, trained(kind, module)), LayerNetwork(kind, fresh(kind, module)))
    base = module.weight.detach()
    forth = compose(base, [(one, 0.7), (two, -0.5), (one, 0.3)]).weight
    back = compose(base, [(one, 0.3), (two, -0.5), (one, 0.7)]).weight
    torch.testing.assert_close(forth, back, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(forth, compose(base, [(one, 1.0)]).weight, rtol=1e-12, atol=1e-15)


def test_missing_alpha_means_a_scale_of_one(kind, module):
    tensors = trained(kind, module)
    without = {s: t for s, t in tensors.items() if s != "alpha"}
    shape = shape_of(module)
    with_alpha = kind.delta(tensors, module.weight, shape).weight
    torch.testing.assert_close(
        kind.delta(without, module.weight, shape).weight, with_alpha / (2.0 / 4), rtol=1e-12, atol=0
    )


def test_extract_reproduces_a_delta_of_known_rank(kind, module):
    delta = kind.delta(trained(kind, module), module.weight, shape_of(module)).weight
    found = kind.extract(delta, 4)
    again = kind.delta(found, module.weight, shape_of(module)).weight
    assert float((again - delta).norm() / delta.norm()) <= 1e-12
    smaller = kind.delta(kind.extract(delta, 3), module.weight, shape_of(module)).weight
    assert math.isfinite(float(smaller.norm()))
    assert float((smaller - delta).norm() / delta.norm()) > 1e-3
