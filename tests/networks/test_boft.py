"""BOFT against its stages written out as whole matrices."""

import numpy as np
import pytest
import torch

from lib_lora.errors import UsageError
from lib_lora.networks.boft import BOFT
from lib_lora.networks.contract import CreateOptions, LayerShape, misfit, shapes_of
from tests.networks.small import (
    a_layer,
    random_tensors,
    shape_of,
)

OPTIONS = {"plain": set(), "rescaled": {"rescale"}, "bounded": {"alpha"}}
BOUND = 0.05


@pytest.fixture(params=["linear", "conv1x1", "conv3x3"])
def layer(request):
    return a_layer(request.param)


@pytest.fixture(params=OPTIONS)
def tensors(request, layer):
    asked = OPTIONS[request.param]
    tensors = random_tensors({"oft_blocks": (2, 2, 6, 6)})
    tensors["alpha"] = torch.tensor(BOUND if "alpha" in asked else 0.0, dtype=torch.float64)
    if "rescale" in asked:
        ones = [1] * (layer.weight.ndim - 1)
        tensors["rescale"] = 1 + random_tensors({"rescale": (12, *ones)}, seed=2)["rescale"]
    return tensors


def stages(blocks, limit):
    """Return the product of all stages as one matrix; in stage i the rows of a pair are 2^i b/2 apart."""
    count, per_stage, size, _ = blocks.shape
    skew = blocks - blocks.transpose(0, 1, 3, 2)
    norm = np.sqrt((skew**2).sum())
    if limit and norm > limit:
        skew = skew * limit / norm
    rows = per_stage * size
    product = np.eye(rows)
    for stage in range(count):
        apart = 2**stage * size // 2
        firsts = [row for row in range(rows) if (row // apart) % 2 == 0]
        order = [row for first in firsts for row in (first, first + apart)]
        whole = np.zeros((rows, rows))
        for index in range(per_stage):
            held = order[index * size : (index + 1) * size]
            block = skew[stage, index]
            turn = (np.eye(size) + block) @ np.linalg.inv(np.eye(size) - block)
            whole[np.ix_(held, held)] = turn
        product = whole @ product
    return product


def test_delta_is_the_weight_through_all_stages_less_the_weight(layer, tensors):
    weight = layer.weight.numpy().reshape(12, -1)
    turned = stages(tensors["oft_blocks"].numpy(), 12 * float(tensors["alpha"])) @ weight
    factors = tensors["rescale"].numpy().reshape(12, 1) if "rescale" in tensors else 1.0
    found = BOFT.delta(tensors, layer.weight, shape_of(layer)).weight
    right = factors * turned - weight
    np.testing.assert_allclose(found.numpy().reshape(12, -1), right, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("out", "rank", "shape"),
    [
        (16, 4, (3, 4, 4, 4)),
        (16, 5, (3, 4, 4, 4)),
        (16, 100, (1, 1, 16, 16)),
        (12, 6, (2, 2, 6, 6)),
        (320, 16, (6, 32, 10, 10)),
        (320, 4, (6, 32, 10, 10)),  # no smaller block leaves a power of two of them
    ],
)
def test_a_fresh_network_mixes_all_rows_with_the_largest_blocks_that_the_rank_allows(
    out, rank, shape
):
    fresh = BOFT.create(LayerShape((out, 8)), CreateOptions(rank=rank), torch.Generator())
    assert fresh["oft_blocks"].shape == shape
    assert misfit(BOFT, shapes_of(fresh), (out, 8)) is None


def test_an_odd_number_of_rows_cannot_be_trained():
    with pytest.raises(UsageError, match="a layer with 77 of them cannot be trained"):
        BOFT.create(LayerShape((77, 8)), CreateOptions(), torch.Generator())


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        ({"oft_blocks": (2, 2, 6, 5)}, (12, 8), "no stages of square blocks"),
        ({"oft_blocks": (0, 2, 6, 6)}, None, "no stages of square blocks"),
        ({"oft_blocks": (2, 4, 3, 3)}, (12, 8), "do not pair the rows"),
        ({"oft_blocks": (3, 2, 6, 6)}, (12, 8), "do not pair the rows"),
        ({"oft_blocks": (2**30, 2, 6, 6)}, None, "do not pair the rows"),
        ({"oft_blocks": (2, 2, 6, 6)}, (16, 8), "turn 12 rows"),
        ({"oft_blocks": (2, 2, 6, 6), "rescale": (8, 1)}, (12, 8), "each of 12 rows"),
        ({"oft_blocks": (2, 2, 6, 6), "alpha": (3,)}, (12, 8), "not one number"),
    ],
)
def test_a_misfit_is_told(shapes, layer, reason):
    assert reason in misfit(BOFT, shapes, layer)
