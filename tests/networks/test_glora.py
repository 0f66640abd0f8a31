"""GLoRA in both layouts against its formula in NumPy."""

import numpy as np
import pytest
import torch

from lib_lora.networks.contract import CreateOptions, LayerShape, misfit, shapes_of
from lib_lora.networks.glora import GLORA
from tests.networks.small import (
    a_layer,
    random_tensors,
    shape_of,
)

RANK, ALPHA = 4, 2.0
LAYERS = ("linear", "square", "conv1x1", "conv3x3")
KERNELS = ("conv1x1", "conv3x3")  # alone have a core
LAYOUTS = [(each, layout) for each in LAYERS for layout in ("new", "old")]
LAYOUTS += [(each, "core") for each in KERNELS]


def tensors_of(layer, layout):
    out, inputs, *kernel = layer.weight.shape
    ones = [1 for _ in kernel]
    sizes = {
        "a1.weight": (inputs, RANK, *ones),
        "a2.weight": (RANK, inputs, *ones),
        "b1.weight": (out, RANK, *ones),
        "b2.weight": (RANK, inputs, *kernel),
    }
    if layout == "core":
        sizes |= {"b2.weight": (RANK, inputs, 1, 1), "bm.weight": (RANK, RANK, *kernel)}
    tensors = random_tensors(sizes)
    if layout == "old":
        names = {"a1": "a2", "a2": "a1", "b1": "b2", "b2": "b1"}
        tensors = {f"{names[s[:2]]}.weight": tensor for s, tensor in tensors.items()}
    return {**tensors, "alpha": torch.tensor(ALPHA, dtype=torch.float64)}


def expected(weight, tensors, layout):
    """Return the delta of any layout, with every matrix as a kernel."""
    wide = {
        suffix: tensor.numpy().reshape(*tensor.shape[:2], *(tensor.shape[2:] or (1, 1)))
        for suffix, tensor in tensors.items()
        if tensor.ndim
    }
    a1, a2, b1, b2 = (wide[f"{name}.weight"] for name in ("a1", "a2", "b1", "b2"))
    scale = ALPHA / RANK
    if layout == "old":
        a1, a2, b1, b2, scale = a2, a1, b2, b1, scale**2
    if layout == "core":
        b2 = np.einsum("prkl,rixy->pikl", wide["bm.weight"], b2)
    kernel = weight if weight.ndim == 4 else weight[..., None, None]
    turned = np.einsum("oikl,irxy,rjuv->ojkl", kernel, a1, a2)
    added = np.einsum("orxy,rikl->oikl", b1, b2)
    return (scale * (turned + added)).reshape(weight.shape)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_delta_equals_the_formula(name, layout):
    layer = a_layer(name)
    tensors = tensors_of(layer, layout)
    found = GLORA.delta(tensors, layer.weight, shape_of(layer)).weight
    right = expected(layer.weight.numpy(), tensors, layout)
    np.testing.assert_allclose(found.numpy(), right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [(12, 8), (8, 12)])
@pytest.mark.parametrize("rank", [8, 12])
def test_a_rank_as_large_as_a_side_does_not_confuse_the_layouts(shape, rank):
    out, inputs = shape
    new = random_tensors(
        {
            "a1.weight": (inputs, rank),
            "a2.weight": (rank, inputs),
            "b1.weight": (out, rank),
            "b2.weight": (rank, inputs),
        }
    )
    new["alpha"] = torch.tensor(float(rank))
    swapped = {"a1": "a2", "a2": "a1", "b1": "b2", "b2": "b1"}
    old = {f"{swapped[s[:2]]}.weight": new[s] for s in new if s != "alpha"}
    base = random_tensors({"base": shape}, seed=4)["base"]
    deltas = [
        GLORA.delta({**given, "alpha": new["alpha"]}, base, LayerShape(shape)).weight
        for given in (new, old)
    ]
    torch.testing.assert_close(*deltas)


@pytest.mark.parametrize("name", LAYERS)
def test_a_fresh_network_fits_its_layer(name):
    layer = a_layer(name)
    options = CreateOptions(rank=RANK, alpha=ALPHA, dtype=torch.float64)
    fresh = GLORA.create(shape_of(layer), options, torch.Generator().manual_seed(1))
    assert misfit(GLORA, shapes_of(fresh), shape_of(layer).weight) is None
    assert float(fresh["alpha"]) == ALPHA


def sizes(a1, a2, b1, b2, alpha=()):
    names = ("a1.weight", "a2.weight", "b1.weight", "b2.weight")
    return {**dict(zip(names, (a1, a2, b1, b2), strict=True)), "alpha": alpha}


@pytest.mark.parametrize(
    ("shapes", "layer", "reason"),
    [
        (sizes((8, 4), (4, 8), (12, 4), (3, 8)), (12, 8), "do not belong together"),
        (sizes((8, 4), (4, 9), (12, 4), (4, 8)), None, "do not belong together"),
        (sizes((8, 0), (0, 8), (12, 0), (0, 8)), (12, 8), "do not belong together"),
        (sizes((8, 4), (4, 8), (12, 4), (4, 8)), (16, 8), r"its delta has the shape (12, 8)"),
        (sizes((4, 8), (8, 4), (4, 8), (12, 4)), (16, 8), r"its delta has the shape (12, 8)"),
        (sizes((8, 4), (4, 8), (12, 4), (4, 8)), (12, 8, 3, 3), "its delta has the shape"),
        (sizes((8, 4), (4, 8), (12, 4), (4, 8), (2,)), (12, 8), "not one number"),
        (
            sizes((8, 4), (4, 8), (12, 4), (4, 8, 3, 3)) | {"bm.weight": (4, 4, 3, 3)},
            None,
            "belong",
        ),
        (sizes((8, 4), (4, 8), (12, 4), (4, 8)) | {"bm.weight": (4, 5, 3, 3)}, None, "belong"),
        (sizes((8, 4, 3, 3), (4, 8), (12, 4), (4, 8)), None, "belong"),
        (sizes((8,), (4, 8), (12, 4), (4, 8)), (12, 8), "do not belong together"),
        (sizes((8, 4), (4, 8), (), (4, 8)), (12, 8), "do not belong together"),
    ],
)
def test_a_misfit_is_told(shapes, layer, reason):
    assert reason in misfit(GLORA, shapes, layer)
