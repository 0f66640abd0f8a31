"""DoRA against its formula, the axis that its magnitudes belong to, and its choice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib_lora.networks.compose import network_type_of
from lib_lora.networks.contract import LayerShape, misfit, shapes_of
from lib_lora.networks.dora import MAGNITUDE, axis_of, with_dora
from lib_lora.networks.lora import DOWN, LORA, UP
from tests.networks.variants import DORA, OPTIONS, VARIANTS, a_module, an_input, shape_of, trained


@pytest.mark.parametrize("layer", ["linear", "conv3x3"])
@pytest.mark.parametrize("variant", DORA)
def test_delta_gives_every_row_or_column_its_magnitude(variant, layer):
    module = a_module(layer)
    kind, tensors = trained(variant, module)
    plain = VARIANTS[variant.removeprefix("dora-").removesuffix("-columns")][0]
    inner = {s: t for s, t in tensors.items() if s != MAGNITUDE}
    weight = module.weight.numpy()
    whole = weight + plain.delta(inner, module.weight, shape_of(module)).weight.numpy()
    others = (
        (0, *range(2, whole.ndim)) if variant.endswith("columns") else tuple(range(1, whole.ndim))
    )
    norms = np.sqrt((whole**2).sum(axis=others, keepdims=True))
    assert tuple(tensors[MAGNITUDE].shape) == norms.shape
    expected = tensors[MAGNITUDE].numpy() * whole / norms - weight
    found = kind.delta(tensors, module.weight, shape_of(module)).weight.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("variant", DORA)
def test_the_type_is_chosen_by_the_magnitudes(variant):
    kind, tensors = trained(variant, a_module("conv3x3"))
    assert network_type_of(shapes_of(tensors)).id == kind.id
    without = {s: t for s, t in tensors.items() if s != MAGNITUDE}
    assert f"dora-{network_type_of(shapes_of(without)).id}" == kind.id


@pytest.mark.parametrize(
    ("magnitudes", "layer", "axis"),
    [
        ((20, 1), (20, 12), "output"),
        ((1, 12), (20, 12), "input"),
        ((20, 1, 1, 1), (20, 12, 3, 3), "output"),
        ((1, 12, 1, 1), (20, 12, 3, 3), "input"),
        ((1, 20, 1, 1), (20, 12, 3, 3), "output"),  # PEFT's convolutions
        ((20,), (20, 12), "output"),
        ((12,), (20, 12), "input"),
        ((8, 1), (8, 8), "output"),
        ((1, 8), (8, 8), "input"),
        ((1, 1), (1, 1), "output"),
        ((13, 1), (20, 12), None),
        ((20, 12), (20, 12), None),
        ((0,), (20, 12), None),
        ((), (20, 12), None),
    ],
)
def test_number_and_shape_of_the_magnitudes_tell_their_axis(magnitudes, layer, axis):
    assert axis_of(magnitudes, layer) == axis
    shapes = {DOWN: (4, *layer[1:]), UP: (layer[0], 4), MAGNITUDE: magnitudes}
    reason = misfit(with_dora(LORA), shapes, layer)
    assert (reason is None) == (axis is not None)


def test_a_row_of_magnitudes_on_a_square_layer_is_read_as_chosen():
    shape = LayerShape((8, 8))
    draw = torch.Generator().manual_seed(1)
    base = torch.randn(8, 8, generator=draw, dtype=torch.float64)
    tensors = LORA.create(shape, OPTIONS, draw)
    row = torch.rand(8, generator=draw, dtype=torch.float64) + 0.5
    found = {
        square: with_dora(LORA, square).delta({**tensors, MAGNITUDE: row}, base, shape).weight
        for square in ("output", "input")
    }
    plain = with_dora(LORA)
    for square, size in (("output", (8, 1)), ("input", (1, 8))):
        told = {**tensors, MAGNITUDE: row.reshape(size)}
        assert torch.equal(found[square], plain.delta(told, base, shape).weight)
    assert not torch.allclose(found["output"], found["input"], atol=1e-2)


def test_a_row_of_zeros_stays_zeros():
    base = torch.zeros(8, 6, dtype=torch.float64)
    options = replace(OPTIONS, base=base)
    kind, shape = with_dora(LORA), LayerShape((8, 6))
    tensors = kind.create(shape, options, torch.Generator().manual_seed(1))
    tensors[MAGNITUDE] = torch.ones(8, 1, dtype=torch.float64)
    assert torch.equal(kind.delta(tensors, base, shape).weight, base)


def test_what_is_prepared_depends_on_the_weight_as_it_was():
    module = a_module("linear")
    kind, tensors = trained("dora-lora", module)
    prepared = kind.prepare(tensors, module.weight, shape_of(module))
    assert MAGNITUDE not in prepared
    x = an_input(module)
    before = kind.output(prepared, x, module, module(x))
    module.weight *= 2
    stale = kind.output(prepared, x, module, module(x))
    anew = kind.output(tensors, x, module, module(x))
    assert not torch.allclose(stale, anew, atol=1e-2)
    assert not torch.allclose(before, anew, atol=1e-2)


def test_a_fresh_dora_needs_the_base():
    with pytest.raises(ValueError, match="takes its magnitudes from a base"):
        with_dora(LORA).create(LayerShape((8, 6)), OPTIONS, torch.Generator())
