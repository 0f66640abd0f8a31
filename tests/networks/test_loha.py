"""LoHa against its formula, and the shapes that make none."""

import numpy as np
import pytest

from lib_lora.networks.contract import ALPHA, LayerShape, misfit
from lib_lora.networks.loha import A1, A2, B1, B2, LOHA, T1, T2
from tests.networks.variants import a_module, arrays, shape_of, trained

LINEAR = {A1: (20, 4), B1: (4, 12), A2: (20, 4), B2: (4, 12), ALPHA: ()}
KERNEL = {A1: (20, 4), B1: (4, 108), A2: (20, 4), B2: (4, 108)}
CORE = {A1: (4, 20), B1: (4, 12), T1: (4, 4, 3, 3), A2: (4, 20), B2: (4, 12), T2: (4, 4, 3, 3)}


def delta_of(tensors, module):
    return LOHA.delta(tensors, module.weight, shape_of(module)).weight.numpy()


@pytest.mark.parametrize("layer", ["linear", "conv1x1", "conv3x3"])
def test_delta_is_the_elementwise_product_of_two_products(layer):
    module = a_module(layer)
    _, tensors = trained("loha", module)
    parts = arrays(tensors)
    expected = (parts[A1] @ parts[B1]) * (parts[A2] @ parts[B2]) * (2.0 / 2)
    found = delta_of(tensors, module)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-12, atol=1e-14)


def test_each_half_has_a_core_of_its_own():
    module = a_module("conv3x3")
    _, tensors = trained("loha-tucker", module)
    parts = arrays(tensors)
    halves = [
        np.einsum("ijkl,jr,ip->prkl", parts[t], parts[b], parts[a])
        for a, b, t in ((A1, B1, T1), (A2, B2, T2))
    ]
    expected = halves[0] * halves[1] * (2.0 / 2)
    np.testing.assert_allclose(delta_of(tensors, module), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("rank", "layer", "cheaper"),
    # rank^2 * (out + in * kh * kw) against out * in * kh * kw
    [
        (2, (20, 12), True),
        (3, (20, 12), False),
        (4, (20, 12, 3, 3), True),
        (5, (20, 12, 3, 3), False),
    ],
)
def test_the_product_is_used_where_it_holds_fewer_numbers_than_the_weight(rank, layer, cheaper):
    columns = int(np.prod(layer[1:]))
    assert cheaper == (rank**2 * (layer[0] + columns) < layer[0] * columns)
    _, tensors = trained("loha", a_module("linear" if len(layer) == 2 else "conv3x3"))
    widened = {s: t if s == ALPHA else _of_rank(t, s, rank) for s, t in tensors.items()}
    assert (LOHA.low_rank(widened, LayerShape(layer)) is not None) == cheaper


def _of_rank(tensor, suffix, rank):
    dim = 1 if suffix in (A1, A2) else 0
    return tensor.narrow(dim, 0, 1).repeat_interleave(rank, dim)


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        (LINEAR, (20, 12), None),
        (LINEAR, (20, 12, 1, 1), None),
        (KERNEL, (20, 12, 3, 3), None),
        (CORE, (20, 12, 3, 3), None),
        (CORE, None, None),
        (LINEAR, (20, 13), "its delta has the shape (20, 12), the layer (20, 13)"),
        (CORE, (20, 108), "its delta has the shape (20, 12, 3, 3)"),
        (LINEAR | {A2: (20, 5)}, None, "hada_w2_a (20, 5), hada_w2_b (4, 12) have no common rank"),
        (LINEAR | {A1: (20, 0), B1: (0, 12)}, None, "have no common rank"),
        (LINEAR | {A1: (20,)}, None, "have no common rank"),
        (CORE | {T2: (4, 5, 3, 3)}, None, "hada_t2 (4, 5, 3, 3) have no common rank"),
        (CORE | {T2: (4, 4)}, None, "have no common rank"),
        (LINEAR | {B2: (4, 13)}, None, "two matrices have the shapes (20, 12) and (20, 13)"),
        (LINEAR | {ALPHA: (3,)}, None, "alpha (3,) is not one number"),
    ],
)
def test_shapes_that_do_not_fit_are_told(shapes, layer, reason):
    found = misfit(LOHA, shapes, layer)
    assert found == reason or reason in found
