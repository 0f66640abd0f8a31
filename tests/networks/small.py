"""What the tests of single network types share: small layers, norms too, and the live path against the baked one."""

import copy

import torch
from torch import nn

from lib_lora.networks.compose import compose
from lib_lora.networks.contract import LayerNetwork, LayerShape

LAYERS = {
    "linear": lambda: nn.Linear(8, 12),
    "square": lambda: nn.Linear(8, 8),
    "conv1x1": lambda: nn.Conv2d(8, 12, 1),
    "conv3x3": lambda: nn.Conv2d(8, 12, 3, padding=1),
    "layer norm": lambda: nn.LayerNorm(12),
    "group norm": lambda: nn.GroupNorm(4, 12),
}
STRENGTHS = (-0.5, 0.0, 0.7, 1.0)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def a_layer(name):
    """Return a layer with random weight and bias, in float64."""
    draw = torch.Generator().manual_seed(0)
    layer = LAYERS[name]().double().requires_grad_(False)
    for tensor in layer.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=draw, dtype=torch.float64))
    return layer


def shape_of(layer):
    return LayerShape(tuple(layer.weight.shape))


def an_input(layer):
    draw = torch.Generator().manual_seed(3)
    width = 12 if shape_of(layer).kind == "norm" else layer.weight.shape[1]
    size = (2, width, 5, 5) if isinstance(layer, nn.Conv2d | nn.GroupNorm) else (2, 7, width)
    return torch.randn(size, generator=draw, dtype=torch.float64)


def random_tensors(sizes, size=0.3, seed=1):
    """Return random float64 tensors of these shapes."""
    draw = torch.Generator().manual_seed(seed)
    return {
        suffix: size * torch.randn(shape, generator=draw, dtype=torch.float64)
        for suffix, shape in sizes.items()
    }


def baked(kind, tensors, layer, strength):
    """Return a copy of a layer with strength * delta in its weight and bias."""
    twin = copy.deepcopy(layer)
    change = compose(twin.weight, [(LayerNetwork(kind, tensors), strength)])
    if change.weight is not None:
        twin.weight += change.weight
    if change.bias is not None:
        twin.bias += change.bias
    return twin


def assert_live_is_baked(kind, tensors, layer):
    """Assert that `output`, with and without `prepare`, adds what the delta in the weight does, at every strength and precision."""
    for dtype, tolerance in TOLERANCES.items():
        module = copy.deepcopy(layer).to(dtype)
        held = {suffix: tensor.to(dtype) for suffix, tensor in tensors.items()}
        forms = [held]
        if kind.prepare is not None:
            forms.append(kind.prepare(held, module.weight, shape_of(module)))
        x = an_input(layer).to(dtype)
        y = module(x)
        for form in forms:
            added = kind.output(form, x, module, y)
            for strength in STRENGTHS:
                right = baked(kind, held, module, strength)(x)
                spread = float(right.max() - right.min())
                assert float((y + strength * added - right).abs().max()) <= tolerance * spread
                # The control: a strength off by 0.05 is told apart.
                off = y + (strength + 0.05) * added
                assert float((off - right).abs().max()) > 1e-4 * spread


def assert_half_precision(kind, tensors, layer, dtype, roundings):
    """Assert that delta and output in a half precision are some roundings of their range away from those in float64."""
    module = copy.deepcopy(layer).to(dtype)
    held = {suffix: tensor.to(dtype) for suffix, tensor in tensors.items()}
    x = an_input(layer).to(dtype)
    exact = {suffix: tensor.double() for suffix, tensor in held.items()}
    wide = copy.deepcopy(module).double()
    pairs = [
        (
            kind.delta(held, module.weight, shape_of(module)).weight,
            kind.delta(exact, wide.weight, shape_of(module)).weight,
            wide.weight,
        ),
        (
            kind.output(held, x, module, module(x)),
            kind.output(exact, x.double(), wide, wide(x.double())),
            wide(x.double()),
        ),
    ]
    for found, right, whole in pairs:
        assert found.dtype == dtype
        scale = max(float(right.abs().max()), float(whole.abs().max()))
        error = float((found.double() - right).abs().max()) / scale
        assert error <= roundings * torch.finfo(dtype).eps
        assert float(right.abs().max()) > 0.05 * scale
