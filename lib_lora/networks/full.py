"""Whole weights: `diff` is added to the weight and `diff_b` to the bias; `set_weight` takes the weight's place, delta = set - W.

`diff` and `diff_b` are LyCORIS' full matrices and ComfyUI's differences, `set_weight` is ComfyUI's, which replaces the weight at any
strength. Here the strength is linear in the finished delta, so that 0 leaves W, 1 sets it and between lies the mixture.
All have the layer's own shapes, those of a normalisation layer included. ComfyUI's extraction writes `diff_b` beside the factors of
a LoRA too: `with_bias` adds it to another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

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
    claim_misfit,
)
from lib_lora.networks.norm import apply_norm

DIFFERENCE, BIAS, REPLACEMENT = "diff", "diff_b", "set_weight"

Value = TypeVar("Value")


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network, all 0 and of the weight's size; there is nothing to draw and no rank."""
    return {DIFFERENCE: torch.zeros(shape.weight, dtype=options.dtype)}


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return the differences as they are; a 1x1 convolution and a linear layer hold the same numbers."""
    return Delta(tensors[DIFFERENCE].reshape(shape.weight), tensors.get(BIAS))


def set_delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return the way from the base to the weight that is to replace it."""
    return Delta(tensors[REPLACEMENT].reshape(shape.weight) - base)


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return the layer's operation with the differences in the places of weight and bias."""
    weight = module.get_parameter("weight")
    return _applied(module, x, delta(tensors, weight, LayerShape(tuple(weight.shape))))


def set_output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return the layer's operation with the difference of the weights; this type has no cheaper way."""
    weight = module.get_parameter("weight").to(x)
    return _applied(module, x, set_delta(tensors, weight, LayerShape(tuple(weight.shape))))


def _applied(module: nn.Module, x: Tensor, change: Delta) -> Tensor:
    assert change.weight is not None  # both formulas give one
    if change.weight.ndim == 1:
        return apply_norm(module, x, change.weight, change.bias)
    result = apply_weight(module, x, change.weight)
    return result if change.bias is None else result + _along_channels(module, change.bias)


def _along_channels(module: nn.Module, bias: Tensor) -> Tensor:
    return bias[:, None, None] if isinstance(module, nn.Conv2d) else bias


def extract(difference: Tensor, wanted: int) -> dict[str, Tensor]:
    """Return the network of a weight difference, which is the difference; there is no rank."""
    return {DIFFERENCE: difference}


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse a weight of another shape than the layer's, and a bias that does not belong to its rows."""
    suffix = DIFFERENCE if DIFFERENCE in shapes else REPLACEMENT
    weight = shapes[suffix]
    if shapes.get(BIAS, weight[:1]) != weight[:1]:
        return f"{suffix} {weight} and {BIAS} {shapes[BIAS]} have no common number of rows"
    return claim_misfit(weight, layer)


FULL = NetworkType(
    id="full",
    label="Full",
    signatures=(frozenset({DIFFERENCE}),),
    optional=frozenset({BIAS}),
    kinds=frozenset({"linear", "conv", "norm"}),
    trainable=frozenset({DIFFERENCE}),
    delta=delta,
    misfit=misfit,
    create=create,
    output=output,
    extract=extract,
    bias=BIAS,
)

SET_WEIGHT = NetworkType(
    id="set-weight",
    label="Replaced weight",
    signatures=(frozenset({REPLACEMENT}),),
    optional=frozenset(),
    kinds=FULL.kinds,
    trainable=frozenset(),
    delta=set_delta,
    misfit=misfit,
    output=set_output,
    reads_base=True,
)


def with_bias(kind: NetworkType) -> NetworkType:
    """Return the type whose files hold a difference of the bias besides the tensors of `kind`; it is not trained."""

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        return Delta(kind.delta(_plain(tensors), base, shape).weight, tensors[BIAS])

    def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        plain = _plain(tensors)
        prepared = kind.prepare(plain, base, shape) if kind.prepare else plain
        return {**prepared, BIAS: tensors[BIAS]}

    def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
        if kind.output is None:
            raise ValueError(f"{kind.label} has no output")
        inner = kind.output(_plain(tensors), x, module, y)
        return inner + _along_channels(module, tensors[BIAS])

    def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
        if len(shapes[BIAS]) != 1 or (layer is not None and shapes[BIAS] != layer[:1]):
            return f"{BIAS} has the shape {shapes[BIAS]}, the layer {layer}"
        return kind.misfit(_plain(shapes), layer)

    return replace(
        kind,
        id=f"{kind.id}-bias",
        label=f"{kind.label} with a bias",
        signatures=tuple(signature | {BIAS} for signature in kind.signatures),
        trainable=frozenset(),
        delta=delta,
        misfit=misfit,
        create=None,
        output=output if kind.output else None,
        prepare=prepare,
        low_rank=None,
        extract=None,
        bias=BIAS,
    )


def _plain(parts: Mapping[str, Value]) -> dict[str, Value]:
    return {suffix: part for suffix, part in parts.items() if suffix != BIAS}
