"""OFT against rotations written out as whole matrices, its bound and its two trainers."""

import numpy as np
import pytest
import torch

from lib_lora.networks.contract import CreateOptions, misfit
from lib_lora.networks.oft import OFT
from tests.networks.small import (
    a_layer,
    random_tensors,
    shape_of,
)

OPTIONS = {
    "plain": {},
    "rescaled": {"rescale"},
    "bounded": {"alpha"},
    "bounded and rescaled": {"alpha", "rescale"},
}
BOUND = 0.03  # * 12 rows: the norm of the random Q is about 3


@pytest.fixture(params=["linear", "conv1x1", "conv3x3"])
def layer(request):
    return a_layer(request.param)


@pytest.fixture(params=OPTIONS)
def tensors(request, layer):
    asked = OPTIONS[request.param]
    tensors = random_tensors({"oft_blocks": (3, 4, 4)})
    tensors["alpha"] = torch.tensor(BOUND if "alpha" in asked else 0.0, dtype=torch.float64)
    if "rescale" in asked:
        ones = [1] * (layer.weight.ndim - 1)
        tensors["rescale"] = 1 + random_tensors({"rescale": (12, *ones)}, seed=2)["rescale"]
    return tensors


def rotation(blocks, limit):
    """Return the rotation of all rows as one matrix."""
    skew = blocks - blocks.transpose(0, 2, 1)
    norm = np.sqrt((skew**2).sum())
    if limit and norm > limit:
        skew = skew * limit / norm
    whole = np.zeros((12, 12))
    for index, block in enumerate(skew):
        rows = slice(4 * index, 4 * index + 4)
        whole[rows, rows] = (np.eye(4) + block) @ np.linalg.inv(np.eye(4) - block)
    return whole


def test_delta_is_the_rotated_weight_less_the_weight(layer, tensors):
    weight = layer.weight.numpy().reshape(12, -1)
    turned = rotation(tensors["oft_blocks"].numpy(), 12 * float(tensors["alpha"])).T @ weight
    factors = tensors["rescale"].numpy().reshape(12, 1) if "rescale" in tensors else 1.0
    found = OFT.delta(tensors, layer.weight, shape_of(layer)).weight
    right = factors * turned - weight
    np.testing.assert_allclose(found.numpy().reshape(12, -1), right, rtol=0, atol=1e-7)


def test_without_rescaling_no_length_changes(layer):
    tensors = random_tensors({"oft_blocks": (3, 4, 4)})
    turned = layer.weight + OFT.delta(tensors, layer.weight, shape_of(layer)).weight
    lengths = [w.reshape(3, 4, -1).square().sum(1) for w in (layer.weight, turned)]
    torch.testing.assert_close(*lengths, rtol=1e-12, atol=0)
    assert float((turned - layer.weight).abs().max()) > 0.5


def test_kohyas_bound_of_0_is_a_bound(layer):
    """Where LyCORIS reads an alpha of 0 as no bound, kohya's trainer leaves no rotation; 1e-8 keeps its norm defined."""
    blocks = random_tensors({"oft_blocks": (3, 4, 4)})
    nothing = torch.tensor(0.0, dtype=torch.float64)
    found = {
        name: OFT.delta({**blocks, name: nothing}, layer.weight, shape_of(layer)).weight
        for name in ("constraint", "alpha")
    }
    assert float(found["constraint"].abs().max()) < 1e-7
    assert float(found["alpha"].abs().max()) > 0.5


def test_the_rotation_itself_is_stored_by_lycoris_2_0(layer):
    tensors = random_tensors({"oft_blocks": (3, 4, 4)})
    whole = rotation(tensors["oft_blocks"].numpy(), None)
    stored = np.stack([whole[i : i + 4, i : i + 4] for i in (0, 4, 8)])
    old = OFT.delta({"oft_diag": torch.tensor(stored)}, layer.weight, shape_of(layer)).weight
    new = OFT.delta(tensors, layer.weight, shape_of(layer)).weight
    torch.testing.assert_close(old, new, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rank", "blocks"), [(4, 3), (5, 3), (8, 2), (1, 12), (100, 1)])
def test_a_fresh_network_has_the_largest_blocks_that_the_rank_allows(rank, blocks):
    layer = a_layer("linear")
    fresh = OFT.create(shape_of(layer), CreateOptions(rank=rank), torch.Generator())
    assert fresh["oft_blocks"].shape == (blocks, 12 // blocks, 12 // blocks)
    assert float(fresh["alpha"]) == 0.0


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        ({"oft_blocks": (3, 4, 5)}, (12, 8), "no square blocks"),
        ({"oft_diag": (12, 12)}, (12, 8), "no square blocks"),
        ({"oft_blocks": (0, 4, 4)}, None, "no square blocks"),
        ({"oft_blocks": (4, 4, 4)}, (12, 8), "turn 16 rows"),
        ({"oft_blocks": (2**40, 2**20, 2**20)}, (12, 8), "rows"),
        ({"oft_blocks": (3, 4, 4), "rescale": (8, 1)}, (12, 8), "each of 12 rows"),
        ({"oft_blocks": (3, 4, 4), "alpha": (3,)}, (12, 8), "not one number"),
        ({"oft_blocks": (3, 4, 4), "constraint": (3,)}, (12, 8), "not one number"),
        ({"oft_blocks": (3, 4, 4)}, (12,), "does not apply"),
    ],
)
def test_a_misfit_is_told(shapes, layer, reason):
    assert reason in misfit(OFT, shapes, layer)
