"""A network that acts on a layer with a factor of its own beside its strength, as block weights ask for: delta times the factor."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from lib_lora.networks.contract import Delta, LayerShape, LowRank, NetworkType, Tensors


def scaled(kind: NetworkType, factor: float) -> NetworkType:
    """Return the type whose finished delta is multiplied by a factor; it is not trained."""

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        inner = kind.delta(tensors, base, shape)
        return Delta(_times(inner.weight, factor), _times(inner.bias, factor))

    def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
        if kind.output is None:
            raise ValueError(f"{kind.label} has no output")
        return kind.output(tensors, x, module, y) * factor

    def low_rank(tensors: Tensors, shape: LayerShape) -> LowRank | None:
        product = kind.low_rank(tensors, shape) if kind.low_rank else None
        return product and LowRank(product.down, product.up * factor)

    return replace(
        kind,
        id=f"{kind.id}-scaled",
        trainable=frozenset(),
        delta=delta,
        create=None,
        output=output if kind.output else None,
        low_rank=low_rank if kind.low_rank else None,
        extract=None,
    )


def _times(tensor: Tensor | None, factor: float) -> Tensor | None:
    return None if tensor is None else tensor * factor
