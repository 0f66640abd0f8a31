"""How much memory networks will take beside a model, from shapes alone: nothing is computed and nothing allocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lib_lora.apply.branch import product_shape, without_numbers
from lib_lora.apply.fused import Share
from lib_lora.networks.contract import LayerNetwork, LayerShape, Shape
from lib_lora.networks.lora import LORA

SMALLEST = 2  # bytes: weights that are stored in less are computed with in 16 bits at least


def forecast(
    networks: Iterable[Mapping[str, LayerNetwork]],
    modules: Mapping[str, nn.Module | Share],
    dtype: torch.dtype | None = None,
) -> int:
    """Return how many bytes networks, by layer id, take once a session on these modules has computed in this dtype.

    dtype: `None` is that of each layer's weight. To be asked before the session is opened, which takes the networks.
    """
    total = 0
    for layers in networks:
        for layer_id, network in layers.items():
            module = modules.get(layer_id)
            if isinstance(module, Share):  # its networks stay as they were read
                total += sum(tensor.nbytes for tensor in network.tensors.values())
            elif module is not None and not isinstance(module, nn.Embedding):
                weight = module.get_parameter("weight")
                total += _numbers(network, tuple(weight.shape)) * _size(weight, dtype)
    return total


def memory_note(
    networks: Sequence[Mapping[str, LayerNetwork]], modules: Mapping[str, nn.Module | Share]
) -> str | None:
    """Say what networks will take, where a layer's is no LoRA: of LoRA the files' sizes tell it, which others outgrow.

    To be asked as `forecast` is.
    """
    if all(_is_lora(network) for layers in networks for network in layers.values()):
        return None
    return f"LoRA Loom takes {forecast(networks, modules) / 1e6:.2f} MB of memory for this picture's networks."


def _is_lora(network: LayerNetwork) -> bool:
    """Tell whether a network is no more than its two factors, with the factor of its block or for fewer channels as well."""
    return network.type.rank is LORA.rank and network.type.low_rank is not None


def _size(weight: Tensor, dtype: torch.dtype | None) -> int:
    return max(weight.dtype.itemsize, SMALLEST) if dtype is None else dtype.itemsize


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
