"""IA3: delta = W * w, one factor per output row, or per input column when the network sits on the layer's input.

Liu et al., 2022, "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning"; tensors and forward are
LyCORIS', where w starts at 0 and the bias is left alone. `weight` is w: (out,) or (in,), on a convolution (1, out, 1, 1) or
(1, in, 1, 1). The length of w tells the side; `on_input` tells it where the layer has as many inputs as outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lib_lora.networks.contract import (
    CreateOptions,
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    apply_weight,
    without_bias,
)

FACTORS, ON_INPUT = "weight", "on_input"


def on_input(tensors: Tensors, shape: LayerShape) -> bool:
    """Tell whether w scales the columns of the weight."""
    out, inputs = shape.weight[:2]
    length = tensors[FACTORS].numel()
    return length == inputs and (out != inputs or bool(tensors[ON_INPUT]))


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network on the output side, whose delta is exactly 0; there is nothing to draw and no rank."""
    out = shape.weight[0]
    size = (1, out, 1, 1) if shape.kind == "conv" else (out,)
    return {
        FACTORS: torch.zeros(size, dtype=options.dtype),
        ON_INPUT: torch.tensor(False),
    }


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return the base's rows or columns, each times its factor."""
    side = (1, -1) if on_input(tensors, shape) else (-1, 1)
    ones = (1 for _ in shape.kernel)
    return Delta(base * tensors[FACTORS].reshape(*side, *ones))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return W (w * x) or w * (W x), which needs no second weight."""
    weight = module.get_parameter("weight")
    shape = LayerShape(tuple(weight.shape))
    factors = tensors[FACTORS].reshape(-1, 1, 1) if shape.kernel else tensors[FACTORS].flatten()
    if on_input(tensors, shape):
        return apply_weight(module, x * factors, weight.to(x))
    return without_bias(module, y) * factors


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse a vector that is as long as neither side of the layer."""
    if math.prod(shapes[ON_INPUT]) != 1:
        return f"{ON_INPUT} {shapes[ON_INPUT]} is not one value"
    length = math.prod(shapes[FACTORS])
    if max(shapes[FACTORS], default=0) != length or length == 0:
        return f"{FACTORS} {shapes[FACTORS]} is no row of factors"
    if layer is not None and length not in layer[:2]:
        return f"it holds {length} factors, the layer {layer} has {layer[0]} rows and {layer[1]} columns"
    return None


IA3 = NetworkType(
    id="ia3",
    label="IA3",
    signatures=(frozenset({FACTORS, ON_INPUT}),),
    optional=frozenset(),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({FACTORS}),
    delta=delta,
    misfit=misfit,
    create=create,
    output=output,
    reads_base=True,
)
