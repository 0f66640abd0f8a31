"""LoRA and LoCon against their formula, and the shapes that make none."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lib_lora.networks.contract import CreateOptions, LayerShape, misfit
from lib_lora.networks.lora import ALPHA, DOWN, LORA, MID, UP, truncated
from tests.networks.variants import OPTIONS, a_module, arrays, shape_of, trained

LINEAR = {DOWN: (4, 12), UP: (20, 4), ALPHA: ()}
CONV = {DOWN: (4, 12, 3, 3), UP: (20, 4, 1, 1), ALPHA: (1,)}
CORE = {DOWN: (4, 12, 1, 1), MID: (4, 4, 3, 3), UP: (20, 4, 1, 1)}


def delta_of(tensors, module):
    return LORA.delta(tensors, module.weight, shape_of(module)).weight


@pytest.mark.parametrize("layer", ["linear", "conv1x1", "conv3x3"])
def test_delta_is_scale_times_up_times_down(layer):
    module = a_module(layer)
    _, tensors = trained("lora", module)
    down, up = arrays(tensors)[DOWN], arrays(tensors)[UP]
    expected = np.einsum("or,ri->oi", up.reshape(20, 4), down.reshape(4, -1)) * (2.0 / 4)
    found = delta_of(tensors, module).numpy()
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-12, atol=1e-14)


def test_a_core_lies_between_the_factors():
    module = a_module("conv3x3")
    _, tensors = trained("lora-tucker", module)
    parts = arrays(tensors)
    down, up = parts[DOWN][..., 0, 0], parts[UP][..., 0, 0]
    expected = np.einsum("nmkl,in,mj->ijkl", parts[MID], up, down) * (2.0 / 4)
    np.testing.assert_allclose(delta_of(tensors, module).numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("held", "used"), [("conv1x1", "linear"), ("linear", "conv1x1")])
def test_a_linear_layer_and_a_1x1_convolution_hold_the_same_numbers(held, used):
    _, tensors = trained("lora", a_module(held))
    one, other = delta_of(tensors, a_module(held)), delta_of(tensors, a_module(used))
    assert other.shape == a_module(used).weight.shape
    assert torch.equal(one.flatten(), other.flatten())


def test_the_rank_stabilized_scale_is_alpha_over_the_root_of_the_rank():
    options = replace(OPTIONS, rank=9, rank_stabilized=True)
    tensors = LORA.create(LayerShape((20, 12)), options, torch.Generator())
    # Every reader divides the alpha of the file by the rank.
    assert float(tensors[ALPHA]) / 9 == pytest.approx(2.0 / math.sqrt(9), rel=1e-6)


@pytest.mark.parametrize("layer", ["linear", "conv3x3"])
def test_truncation_keeps_the_first_ranks_at_the_scale_of_all(layer):
    module = a_module(layer)
    _, tensors = trained("lora", module)
    down, up = (arrays(tensors)[suffix].reshape(len(tensors[suffix]), -1) for suffix in (DOWN, UP))
    expected = up[:, :3] @ down[:3] * (2.0 / 4)
    found = delta_of(truncated(tensors, 3), module).flatten(1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(delta_of(truncated(tensors, 9), module), delta_of(tensors, module))


def test_truncation_leaves_a_network_with_a_core_whole():
    _, tensors = trained("lora-tucker", a_module("conv3x3"))
    assert truncated(tensors, 2) == tensors


def test_a_fresh_down_has_the_deviation_of_a_fresh_layer():
    shape = LayerShape((8, 640))
    tensors = LORA.create(shape, CreateOptions(rank=64), torch.Generator().manual_seed(1))
    # A uniform draw within 1 / sqrt(in) has the deviation 1 / sqrt(3 in).
    assert float(tensors[DOWN].std()) == pytest.approx(1 / math.sqrt(3 * 640), rel=0.02)


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        (LINEAR, (20, 12), None),
        (LINEAR, (20, 12, 1, 1), None),
        (LINEAR, None, None),
        (CONV, (20, 12, 3, 3), None),
        (CORE, (20, 12, 3, 3), None),
        (LINEAR, (12, 20), "its delta has the shape (20, 12), the layer (12, 20)"),
        (CONV, (20, 12), "its delta has the shape (20, 12, 3, 3), the layer (20, 12)"),
        (CONV, (20, 3, 12, 3), "its delta has the shape"),
        (LINEAR | {DOWN: (0, 12), UP: (20, 0)}, None, "have no common rank"),
        (LINEAR | {UP: (20, 5)}, None, "have no common rank"),
        (LINEAR | {UP: (20, 4, 3, 3)}, None, "are no pair of factors"),
        (LINEAR | {ALPHA: (2,)}, None, "alpha (2,) is not one number"),
        (CORE | {MID: (4, 5, 3, 3)}, None, "lora_mid.weight (4, 5, 3, 3) and"),
        (CORE | {MID: (4, 4)}, None, "is no kernel between"),
        (CORE | {DOWN: (4, 12, 3, 3)}, None, "is no kernel between"),
        (LINEAR | {"lora_x": ()}, None, "lora_x on a LoRA / LoCon layer is not supported yet"),
    ],
)
def test_shapes_that_do_not_fit_are_told(shapes, layer, reason):
    found = misfit(LORA, shapes, layer)
    assert found == reason or reason in found
