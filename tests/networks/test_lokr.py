"""LoKr against its formula, its factors against LyCORIS', and the shapes that make none."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib_lora.networks.contract import ALPHA, CreateOptions, LayerShape, misfit, shapes_of
from lib_lora.networks.lokr import LOKR, T2, W1, W1_A, W1_B, W2, W2_A, W2_B, split
from tests.golden_data import golden
from tests.networks.variants import OPTIONS, a_module, arrays, shape_of, trained

WHOLE = {W1: (4, 3), W2: (5, 4), ALPHA: ()}
PRODUCT = {W1_A: (4, 2), W1_B: (2, 3), W2_A: (5, 2), W2_B: (2, 36)}
CORE = {W1: (4, 3), W2_A: (2, 5), W2_B: (2, 4), T2: (2, 2, 3, 3)}


def kron(first, second):
    """Return the Kronecker product of a matrix and a kernel by its definition."""
    (o1, i1), (o2, i2) = first.shape, second.shape[:2]
    whole = np.zeros((o1 * o2, i1 * i2, *second.shape[2:]))
    for row in range(o1):
        for column in range(i1):
            block = whole[row * o2 : (row + 1) * o2, column * i2 : (column + 1) * i2]
            block += first[row, column] * second
    return whole


def delta_of(tensors, module):
    return LOKR.delta(tensors, module.weight, shape_of(module)).weight.numpy()


@pytest.mark.parametrize("layer", ["linear", "conv1x1", "conv3x3"])
@pytest.mark.parametrize("variant", ["lokr", "lokr-whole", "lokr-factors"])
def test_delta_is_the_kronecker_product(variant, layer):
    module = a_module(layer)
    _, tensors = trained(variant, module)
    parts = arrays(tensors)
    first = parts[W1] if W1 in parts else parts[W1_A] @ parts[W1_B]
    second = parts[W2] if W2 in parts else parts[W2_A] @ parts[W2_B]
    # alpha 2 over rank 1; the whole factors have a scale of 1, whatever the alpha.
    scale = 1.0 if W2 in parts else 2.0
    expected = scale * kron(first, second.reshape(5, 4, *module.weight.shape[2:]))
    np.testing.assert_allclose(delta_of(tensors, module), expected, rtol=1e-12, atol=1e-14)
    doubled = tensors | {ALPHA: torch.tensor(4.0)}
    ratio = 1.0 if W2 in parts else 2.0
    np.testing.assert_allclose(delta_of(doubled, module), ratio * expected, rtol=1e-12, atol=1e-14)


def test_the_second_factor_may_have_a_core():
    module = a_module("conv3x3")
    _, tensors = trained("lokr-tucker", module)
    parts = arrays(tensors)
    second = np.einsum("ijkl,jr,ip->prkl", parts[T2], parts[W2_B], parts[W2_A])
    expected = 2.0 * kron(parts[W1], second)
    np.testing.assert_allclose(delta_of(tensors, module), expected, rtol=1e-12, atol=1e-14)


def test_a_first_factor_of_two_alone_has_the_rank_of_its_own():
    module = a_module("linear")
    _, tensors = trained("lokr-whole", module)
    first = {W1_A: torch.ones(4, 2).double(), W1_B: torch.ones(2, 3).double()}
    tensors = {W2: tensors[W2], ALPHA: tensors[ALPHA], **first}
    expected = (4.0 / 2) * kron(np.full((4, 3), 2.0), tensors[W2].numpy())
    np.testing.assert_allclose(delta_of(tensors, module), expected, rtol=1e-12)


# No constructor made the first; the others were asked for what a new network here does not offer.
NOT_CREATED = ("w1lowrank-w2full", "no-alpha", "both-lowrank", "unbalanced", "dora")


def created_by_lycoris():
    return [
        pytest.param(case, id=case["id"])
        for case in golden("network_types")["cases"]
        if case["type"] == "lokr" and not any(name in case["id"] for name in NOT_CREATED)
    ]


@pytest.mark.parametrize("case", created_by_lycoris())
def test_fresh_factors_have_the_sizes_that_lycoris_chooses(case):
    made = case["made_with"]
    weight = golden("network_types")["layers"][case["layer"]]["weight_shape"]
    options = CreateOptions(
        rank=made["lora_dim"],
        alpha=made["alpha"],
        factor=made.get("factor", -1),
        tucker=made.get("use_tucker", False),
    )
    tensors = LOKR.create(LayerShape(tuple(weight)), options, torch.Generator())
    recorded = {suffix: tuple(part["shape"]) for suffix, part in case["state"].items()}
    assert shapes_of(tensors) == recorded


@pytest.mark.parametrize(
    ("size", "factor", "expected"),
    [
        (12, -1, (3, 4)),
        (320, -1, (16, 20)),
        (1280, 8, (8, 160)),
        (7, -1, (1, 7)),
        (320, 12, (10, 32)),
    ],
)
def test_a_size_is_split_in_two(size, factor, expected):
    assert split(size, factor) == expected


def test_whole_factors_are_stored_with_a_scale_of_1_for_every_reader():
    tensors = LOKR.create(LayerShape((20, 12)), replace(OPTIONS, alpha=3.0), torch.Generator())
    assert float(tensors[ALPHA]) / OPTIONS.rank == 1.0


def test_extract_finds_the_nearest_kronecker_product():
    draw = torch.Generator().manual_seed(6)
    noisy = torch.randn(20, 12, 3, 3, generator=draw, dtype=torch.float64)
    found = LOKR.delta(LOKR.extract(noisy, 100), noisy, LayerShape((20, 12, 3, 3))).weight
    # No product is nearer: the rearranged difference keeps all its singular values but the largest.
    blocks = noisy.reshape(4, 5, 3, 36).permute(0, 2, 1, 3).reshape(12, 180)
    singular = np.linalg.svd(blocks.numpy(), compute_uv=False)
    left = float((noisy - found).square().sum())
    assert left == pytest.approx(float((singular[1:] ** 2).sum()), rel=1e-10)


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        (WHOLE, (20, 12), None),
        (WHOLE | {W2: (5, 4, 1, 1)}, (20, 12), None),
        (WHOLE | {W2: (5, 4, 3, 3)}, (20, 12, 3, 3), None),
        (PRODUCT, (20, 12, 3, 3), None),
        (CORE, (20, 12, 3, 3), None),
        (CORE, None, None),
        (WHOLE, (20, 13), "its first factor (4, 3) does not divide the layer (20, 13)"),
        (WHOLE, (21, 12), "its delta has the shape (20, 12), the layer (21, 12)"),
        (WHOLE | {W1_A: (4, 2)}, None, "lokr_w1 and lokr_w1_a are two forms of one factor"),
        (WHOLE | {T2: (2, 2, 3, 3)}, None, "lokr_w2 and lokr_t2 are two forms of one factor"),
        (PRODUCT | {W1_B: (3, 3)}, None, "lokr_w1_a (4, 2), lokr_w1_b (3, 3) make no factor"),
        (PRODUCT | {W2_A: (5, 0), W2_B: (0, 36)}, None, "make no factor of a Kronecker product"),
        (CORE | {T2: (2, 3, 3, 3)}, None, "lokr_t2 (2, 3, 3, 3), lokr_w2_a (2, 5)"),
        (WHOLE | {W1: (4,)}, None, "lokr_w1 (4,) make no factor"),
        (WHOLE | {ALPHA: (2,)}, None, "alpha (2,) is not one number"),
    ],
)
def test_shapes_that_do_not_fit_are_told(shapes, layer, reason):
    found = misfit(LOKR, shapes, layer)
    assert found == reason or reason in found
