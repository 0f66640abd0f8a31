"""How much memory networks will take beside a model, from shapes alone: nothing is computed and nothing allocated."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from lib_lora.apply.branch import product_shape, without_numbers
from lib_lora.apply.session import LoadedNetwork, Modules
from lib_lora.networks.contract import LayerNetwork, LayerShape, Shape


def forecast(networks: Iterable[LoadedNetwork], modules: Modules, dtype: torch.dtype) -> int:
    """Return how many bytes the networks take once a session on these modules has computed in this dtype.

    To be asked before the session is opened, which takes the networks.
    """
    return sum(
        _numbers(network, tuple(modules[layer_id].get_parameter("weight").shape)) * dtype.itemsize
        for loaded in networks
        for layer_id, network in loaded.layers.items()
        if layer_id in modules and not isinstance(modules[layer_id], nn.Embedding)
    )


def _numbers(network: LayerNetwork, weight: Shape) -> int:
    """Return how many numbers a branch holds for a network on a layer of this shape."""
    product = product_shape(network, weight)
    if product is not None:
        return product.down.numel() + product.up.numel()
    tensors = without_numbers(network)
    if network.type.prepare is not None:
        base = torch.empty(weight, device="meta")
        tensors = network.type.prepare(tensors, base, LayerShape(weight))
    return sum(tensor.numel() for tensor in tensors.values())
