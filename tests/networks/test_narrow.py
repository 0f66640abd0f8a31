"""Networks made for the latent's four channels on a convolution that sees nine: the first four are as those of a layer of four."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lib_lora.networks.compose import network_type_of
from lib_lora.networks.contract import LayerNetwork, LayerShape, misfit, shapes_of
from lib_lora.networks.narrow import narrowed
from tests.networks.small import baked
from tests.networks.variants import COLUMNS, OPTIONS, VARIANTS

# IA3 on rows, OFT and BOFT ask nothing of the columns: they fit nine as they are.
NAMES = ("lora", "lora-tucker", "loha", "lokr", "full", "glora", "dora-lora", "dora-lora-columns")
CHANNELS, ALL = 4, 9
STRENGTH = 0.7


def a_layer(channels, mode="zeros"):
    torch.manual_seed(0)
    layer = nn.Conv2d(ALL, 8, 3, padding=1, padding_mode=mode).double().requires_grad_(False)
    if channels < ALL:
        narrow = nn.Conv2d(channels, 8, 3, padding=1, padding_mode=mode).double()
        narrow.requires_grad_(False).weight.copy_(layer.weight[:, :channels])
        narrow.bias.copy_(layer.bias)
        return narrow
    return layer


def trained_on_four(name):
    kind, options = VARIANTS[name]
    columns = COLUMNS.per_input if name.endswith("-columns") else OPTIONS.per_input
    options = replace(options, rank=2, base=a_layer(CHANNELS).weight, per_input=columns)
    draw = torch.Generator().manual_seed(1)
    tensors = kind.create(LayerShape((8, CHANNELS, 3, 3)), options, draw)
    for suffix in sorted(kind.trainable & tensors.keys()):
        moved = torch.randn(tensors[suffix].shape, generator=draw, dtype=torch.float64)
        tensors[suffix] = tensors[suffix] + 0.3 * moved
    return kind, tensors


@pytest.mark.parametrize("name", NAMES)
def test_the_first_columns_are_those_of_a_layer_that_sees_no_more(name):
    kind, tensors = trained_on_four(name)
    narrow = narrowed(kind, CHANNELS)
    found = baked(narrow, tensors, a_layer(ALL), STRENGTH)
    expected = baked(kind, tensors, a_layer(CHANNELS), STRENGTH)
    assert torch.allclose(found.weight[:, :CHANNELS], expected.weight, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.weight[:, CHANNELS:], a_layer(ALL).weight[:, CHANNELS:])
    assert not torch.allclose(found.weight, a_layer(ALL).weight, atol=1e-2)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("name", NAMES)
def test_live_is_baked(name, mode):
    kind, tensors = trained_on_four(name)
    narrow, layer = narrowed(kind, CHANNELS), a_layer(ALL, mode)
    x = torch.randn(2, ALL, 5, 5, generator=torch.Generator().manual_seed(3)).double()
    y = layer(x)
    expected = baked(narrow, tensors, layer, STRENGTH)(x)
    prepared = narrow.prepare(tensors, layer.weight, LayerShape((8, ALL, 3, 3)))
    for form in (tensors, prepared):
        added = narrow.output(form, x, layer, y)
        assert torch.allclose(y + STRENGTH * added, expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(y + 1.05 * STRENGTH * added, expected, rtol=1e-3, atol=1e-3)
    if kind.low_rank is not None:
        product = narrow.low_rank(tensors, LayerShape((8, ALL, 3, 3)))
        delta = (product.up @ product.down.flatten(1)).reshape(8, ALL, 3, 3)
        change = narrow.delta(tensors, layer.weight, LayerShape((8, ALL, 3, 3))).weight
        assert torch.allclose(delta, change, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_made_for_so_many_channels_fits(name):
    kind, tensors = trained_on_four(name)
    shapes = shapes_of(tensors)
    narrow = narrowed(network_type_of(shapes), CHANNELS)
    assert LayerNetwork(kind, tensors).type.id == network_type_of(shapes).id
    assert misfit(narrow, shapes, (8, ALL, 3, 3)) is None
    assert misfit(kind, shapes, (8, ALL, 3, 3)) is not None
    assert misfit(narrowed(kind, CHANNELS + 1), shapes, (8, ALL, 3, 3)) is not None
