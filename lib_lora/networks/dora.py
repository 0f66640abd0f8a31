"""DoRA, a modifier of other types: W + delta = m * (W + D) / ||W + D||, D the delta of the modified type.

Liu et al., 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation". The magnitudes m (`dora_scale`) and the norms are one per output row,
as in the paper, PEFT and LyCORIS from 3.2 on, or one per input column, as in older LyCORIS files. Which one is told by how many
magnitudes there are; on a square layer by their shape, (n, 1, ...) or (1, n, ...); for a plain row of n magnitudes on a
square layer nothing tells it, and `with_dora(kind, square=...)` decides: PEFT, which writes such rows, means output rows.

The formula is the trainer's forward at strength 1. The strength multiplies the finished delta; LyCORIS and PEFT put
theirs inside the norm, so that other strengths differ from theirs on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeVar

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
    at_least_float32,
    without_bias,
)

MAGNITUDE = "dora_scale"
EXCESS = "dora_excess"  # m / ||W + D|| - 1, what `prepare` makes of it: small, and so exact enough in half precision

Axis = Literal["output", "input"]
Value = TypeVar("Value")


def axis_of(magnitudes: Shape, layer: Shape, square: Axis = "output") -> Axis | None:
    """Return the side of a layer that magnitudes of this shape belong to, `None` when it is neither."""
    count = math.prod(magnitudes)
    if max(magnitudes, default=0) != count or count not in layer[:2]:
        return None
    if layer[0] != layer[1]:
        return "output" if count == layer[0] else "input"
    if len(magnitudes) == 1:
        return square
    return "output" if magnitudes[0] == count else "input"


def with_dora(kind: NetworkType, square: Axis = "output") -> NetworkType:
    """Return the type whose files hold magnitudes besides the tensors of `kind`.

    Its `create` needs the base among the options. `prepare` builds W + D once, for its norms, which no step then repeats; it has
    to be called again when the base's weight changes.
    """

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        whole = base + _inner_delta(kind, tensors, base, shape)
        return Delta(whole * _gain(tensors[MAGNITUDE], whole, square) - base)

    def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        exact = at_least_float32(base)
        moved = {s: t.to(exact) if t.dim() else t for s, t in tensors.items()}
        whole = exact + _inner_delta(kind, moved, exact, shape)
        return {**_plain(tensors), EXCESS: _gain(moved[MAGNITUDE], whole, square) - 1}

    def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
        weight = module.get_parameter("weight")
        if EXCESS not in tensors:
            tensors = prepare(tensors, weight, LayerShape(tuple(weight.shape)))
        return _output(kind, tensors, x, module, y)

    def create(
        shape: LayerShape, options: CreateOptions, generator: torch.Generator
    ) -> dict[str, Tensor]:
        if kind.create is None or options.base is None:
            raise ValueError(f"a fresh DoRA on {kind.label} takes its magnitudes from a base")
        base = at_least_float32(options.base)
        norms = _norms(base.detach(), "input" if options.per_input else "output")
        return {**kind.create(shape, options, generator), MAGNITUDE: norms.to(options.dtype)}

    def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
        reason = kind.misfit(_plain(shapes), layer)
        if reason is None and layer is not None and axis_of(shapes[MAGNITUDE], layer) is None:
            return f"{MAGNITUDE} {shapes[MAGNITUDE]} is neither one number per row nor one per column of the layer {layer}"
        return reason

    return replace(
        kind,
        id=f"dora-{kind.id}",
        label=f"DoRA on {kind.label}",
        signatures=tuple(signature | {MAGNITUDE} for signature in kind.signatures),
        trainable=kind.trainable | {MAGNITUDE},
        delta=delta,
        misfit=misfit,
        create=create if kind.create else None,
        output=output if kind.output else None,
        prepare=prepare,
        low_rank=None,
        extract=None,
        reads_base=True,
    )


def _plain(parts: Mapping[str, Value]) -> dict[str, Value]:
    return {suffix: part for suffix, part in parts.items() if suffix not in (MAGNITUDE, EXCESS)}


def _inner_delta(kind: NetworkType, tensors: Tensors, base: Tensor, shape: LayerShape) -> Tensor:
    inner = kind.delta(_plain(tensors), base, shape).weight
    if inner is None:
        raise ValueError(f"{kind.label} changes no weight that DoRA could measure")
    return inner


def _norms(whole: Tensor, axis: Axis) -> Tensor:
    """Return the norm of each output row, (out, 1, ...), or input column, (1, in, 1, ...)."""
    kept = 0 if axis == "output" else 1
    others = [dim for dim in range(whole.dim()) if dim != kept]
    return torch.linalg.vector_norm(whole, dim=others, keepdim=True)


def _gain(magnitudes: Tensor, whole: Tensor, square: Axis) -> Tensor:
    """Return m / ||W + D|| in the shape of the norms; a row of zeros stays zeros."""
    axis = axis_of(tuple(magnitudes.shape), tuple(whole.shape), square)
    if axis is None:
        raise ValueError(f"{MAGNITUDE} {tuple(magnitudes.shape)} on {tuple(whole.shape)}")
    norms = _norms(whole, axis)
    smallest = torch.finfo(norms.dtype).eps
    return magnitudes.reshape(norms.shape).to(norms) / norms.clamp_min(smallest)


def _output(
    kind: NetworkType, prepared: Tensors, x: Tensor, module: nn.Module, y: Tensor
) -> Tensor:
    """Return what gain g adds: (g - 1) W x + g D x per output row, W (g - 1) x + D g x per input column."""
    if kind.output is None:
        raise ValueError(f"{kind.label} has no output")
    excess, inner = prepared[EXCESS], _plain(prepared)
    ones = (1, 1) if isinstance(module, nn.Conv2d) else ()
    more = excess.reshape(-1, *ones).to(x)  # along the channels of x or y
    if excess.shape[1] == 1:
        own = without_bias(module, y).to(x)
        return more * own + (1 + more) * kind.output(inner, x, module, y)
    weight = module.get_parameter("weight").to(x.dtype)
    scaled = more * x
    return apply_weight(module, scaled, weight) + kind.output(inner, x + scaled, module, y)
