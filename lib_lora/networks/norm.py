"""Norm: the weight and the bias of a normalisation layer change by `w_norm` and `b_norm`, both (width,).

LyCORIS' `NormModule`: W + w_norm, b + b_norm. A normalisation is linear in its weight and bias together, so that its output changes
by the same normalisation of the same input with w_norm and b_norm in their places.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib_lora.networks.contract import (
    CreateOptions,
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
)

WEIGHT, BIAS = "w_norm", "b_norm"


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network, all 0; there is nothing to draw and no rank."""
    return {suffix: torch.zeros(shape.weight, dtype=options.dtype) for suffix in (WEIGHT, BIAS)}


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return the two vectors as they are."""
    return Delta(tensors[WEIGHT], tensors.get(BIAS))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return the normalised input times w_norm, plus b_norm."""
    return apply_norm(module, x, tensors[WEIGHT], tensors.get(BIAS))


def apply_norm(module: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Run the operation of a live normalisation layer with another weight and bias.

    Raises TypeError for any other module.
    """
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(x, module.num_groups, weight, bias, module.eps)
    raise TypeError(f"{type(module).__name__} is neither a layer norm nor a group norm")


def extract(difference: Tensor, wanted: int) -> dict[str, Tensor]:
    """Return the network of a weight difference, which is the difference; there is no rank."""
    return {WEIGHT: difference}


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse vectors of another width than the layer's."""
    for suffix in sorted(shapes):
        if layer is not None and shapes[suffix] != layer:
            return f"{suffix} has the shape {shapes[suffix]}, the layer {layer}"
    return None


NORM = NetworkType(
    id="norm",
    label="Norm",
    signatures=(frozenset({WEIGHT}),),
    optional=frozenset({BIAS}),
    kinds=frozenset({"norm"}),
    trainable=frozenset({WEIGHT, BIAS}),
    delta=delta,
    misfit=misfit,
    create=create,
    output=output,
    extract=extract,
    bias=BIAS,
)
