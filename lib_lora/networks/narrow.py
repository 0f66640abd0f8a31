"""Networks made for fewer input channels than a layer has: delta on the first ones, zeros on the others.

The first convolution of an inpainting model sees the mask and the masked picture behind the four channels of the latent. To a delta that
is made for four the WebUI adds columns of zeros (v1.10.1, `extensions-builtin/Lora/networks.py`, line 445). The base that such a
network's formula asks for is the layer's first columns.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from lib_lora.networks.contract import (
    Delta,
    LayerShape,
    LowRank,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    apply_weight,
    at_least_float32,
)

WIDENED, BIAS = "widened", "widened_bias"  # what `prepare` makes


def narrowed(kind: NetworkType, channels: int) -> NetworkType:
    """Return the type of networks on the first input channels of convolutions; they are not trained."""

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        inner = kind.delta(tensors, base[:, :channels], _narrow(shape, channels))
        weight = None if inner.weight is None else _widened(inner.weight, shape)
        return Delta(weight, inner.bias)

    def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        exact = at_least_float32(base)
        moved = {
            s: t.to(exact) if t.is_floating_point() and t.dim() else t for s, t in tensors.items()
        }
        change = delta(moved, exact, shape)
        parts = {WIDENED: change.weight, BIAS: change.bias}
        return {suffix: part for suffix, part in parts.items() if part is not None}

    def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
        if not tensors.keys() & {WIDENED, BIAS}:
            weight = module.get_parameter("weight")
            tensors = prepare(tensors, weight, LayerShape(tuple(weight.shape)))
        added = torch.zeros_like(y)
        if WIDENED in tensors:
            added = added + apply_weight(module, x, tensors[WIDENED].to(x))
        return added + tensors[BIAS].to(x)[:, None, None] if BIAS in tensors else added

    def low_rank(tensors: Tensors, shape: LayerShape) -> LowRank | None:
        form = kind.low_rank
        product = form(tensors, _narrow(shape, channels)) if form is not None else None
        return product and LowRank(_widened(product.down, shape), product.up)

    def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
        return kind.misfit(shapes, layer and (layer[0], channels, *layer[2:]))

    return replace(
        kind,
        id=f"{kind.id}-narrow",
        label=f"{kind.label} on {channels} channels",
        kinds=kind.kinds & {"conv"},
        trainable=frozenset(),
        delta=delta,
        misfit=misfit,
        create=None,
        output=output,
        prepare=prepare,
        low_rank=low_rank,
        extract=None,
    )


def _narrow(shape: LayerShape, channels: int) -> LayerShape:
    return LayerShape((shape.weight[0], channels, *shape.kernel))


def _widened(tensor: Tensor, shape: LayerShape) -> Tensor:
    """Return (rows, channels, kh, kw) with columns of zeros up to the layer's own number."""
    missing = shape.weight[1] - tensor.shape[1]
    zeros = tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])
    return torch.cat([tensor, zeros], dim=1)
