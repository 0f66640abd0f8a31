"""The sparse remainder that LyCORIS' extraction keeps beside the factors."""

import numpy as np
import pytest
import torch

from lib_lora.errors import FileFormatError
from lib_lora.networks.compose import compose, network_type_of
from lib_lora.networks.contract import LayerNetwork, misfit, shapes_of
from lib_lora.networks.lora import LORA
from lib_lora.networks.sparse import with_remainder
from tests.networks.small import a_layer, assert_live_is_baked, random_tensors, shape_of

SPARSE = with_remainder(LORA)
SHAPES = {
    "lora_down.weight": (3, 8),
    "lora_up.weight": (12, 3),
    "bias_indices": (2, 4),
    "bias_values": (4,),
    "bias_size": (2,),
}


@pytest.fixture(params=["linear", "conv1x1", "conv3x3"])
def layer(request):
    return a_layer(request.param)


@pytest.fixture
def tensors(layer):
    """Return a network as the extraction writes it, but for an alpha that is not the rank and a place that is named twice."""
    out, inputs, *kernel = layer.weight.shape
    columns = layer.weight[0].numel()
    ones = [1 for _ in kernel]
    tensors = random_tensors(
        {
            "lora_down.weight": (3, inputs, *kernel),
            "lora_up.weight": (out, 3, *ones),
            "bias_values": (4,),
        }
    )
    places = [[0, 11, 5, 5], [columns - 1, 0, 3, 3]]
    return {
        **tensors,
        "alpha": torch.tensor(1.5, dtype=torch.float64),
        "bias_indices": torch.tensor(places, dtype=torch.int16),
        "bias_size": torch.tensor([out, columns], dtype=torch.int16),
    }


def test_the_remainder_is_added_before_the_scale(layer, tensors):
    assert network_type_of(shapes_of(tensors)).id == SPARSE.id
    factors = [tensors[s].numpy() for s in ("lora_up.weight", "lora_down.weight")]
    product = factors[0].reshape(12, 3) @ factors[1].reshape(3, -1)
    for row, column, value in zip(
        *tensors["bias_indices"].tolist(), tensors["bias_values"].tolist(), strict=True
    ):
        product[row, column] += value
    found = SPARSE.delta(tensors, layer.weight, shape_of(layer)).weight
    np.testing.assert_allclose(found.numpy().reshape(12, -1), product * 0.5, atol=1e-15)


def test_live_is_baked(layer, tensors):
    assert_live_is_baked(SPARSE, tensors, layer)


def test_indices_stay_whole_numbers_in_half_precision():
    """bfloat16 has no 2049."""
    tensors = {
        "lora_down.weight": torch.zeros(1, 2100),
        "lora_up.weight": torch.zeros(2, 1),
        "bias_indices": torch.tensor([[1], [2049]], dtype=torch.int16),
        "bias_values": torch.tensor([0.5]),
        "bias_size": torch.tensor([2, 2100], dtype=torch.int16),
    }
    base = torch.zeros(2, 2100, dtype=torch.bfloat16)
    found = compose(base, [(LayerNetwork(SPARSE, tensors), 1.0)]).weight
    assert found.dtype == torch.bfloat16
    assert found.nonzero().tolist() == [[1, 2049]]
    assert float(found[1, 2049]) == 0.5


@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        ("bias_size", [8, 12]),
        ("bias_indices", [[0, 11, 5, 12], [7, 0, 3, 3]]),
        ("bias_indices", [[0, 11, 5, -1], [7, 0, 3, 3]]),
    ],
)
def test_elements_outside_of_the_layer_are_refused(suffix, value):
    layer = a_layer("linear")
    sizes = {suffix: shape for suffix, shape in SHAPES.items() if shape != (2,)}
    tensors = {
        **random_tensors(sizes),
        "bias_indices": torch.tensor([[0, 11, 5, 5], [7, 0, 3, 3]]),
        "bias_size": torch.tensor([12, 8]),
    }
    assert misfit(SPARSE, shapes_of(tensors), (12, 8)) is None
    SPARSE.delta(tensors, layer.weight, shape_of(layer))
    with pytest.raises(FileFormatError, match=r"the layer's is \(12, 8\)"):
        SPARSE.delta({**tensors, suffix: torch.tensor(value)}, layer.weight, shape_of(layer))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bias_indices": (3, 4)}, "make no sparse matrix"),
        ({"bias_indices": (2, 5)}, "make no sparse matrix"),
        ({"bias_size": (4,)}, "make no sparse matrix"),
        ({"bias_values": (2, 2)}, "make no sparse matrix"),
        ({"lora_up.weight": (13, 3)}, "its delta has the shape"),
    ],
)
def test_a_misfit_is_told(changed, reason):
    assert misfit(SPARSE, SHAPES, (12, 8)) is None
    assert reason in misfit(SPARSE, {**SHAPES, **changed}, (12, 8))
