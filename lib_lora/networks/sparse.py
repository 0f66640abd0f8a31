"""The sparse remainder of an extraction, a modifier of other types: delta = D + s * remainder, D the delta of the modified type.

LyCORIS' extraction can keep the largest elements of what its factors leave over. Its files call them a bias, but they belong to the
weight as a matrix (out, in * kh * kw): `bias_indices` (2, n) are row and column, `bias_values` (n,) the elements, `bias_size` (2,)
the matrix's shape. s = alpha / rank, since readers add the remainder before they scale; the extraction itself writes alpha = rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from lib_lora.errors import FileFormatError
from lib_lora.networks.contract import (
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    apply_weight,
    scale_of,
    shapes_of,
)

INDICES, VALUES, SIZE = "bias_indices", "bias_values", "bias_size"
REMAINDER = "remainder"  # the scaled matrix in the layer's shape, once it is filled

Value = TypeVar("Value")


def with_remainder(kind: NetworkType) -> NetworkType:
    """Return the type whose files hold a sparse remainder besides the tensors of `kind`; it is not trained."""

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        inner = kind.delta(_plain(tensors), base, shape)
        rest = _remainder(kind, tensors, shape).to(base)
        return Delta(rest if inner.weight is None else inner.weight + rest, inner.bias)

    def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
        plain = _plain(tensors)
        if kind.prepare is not None:
            plain = kind.prepare(plain, base, shape)
        return {**plain, REMAINDER: _remainder(kind, tensors, shape)}

    def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
        shape = LayerShape(tuple(module.get_parameter("weight").shape))
        rest = tensors.get(REMAINDER)
        if rest is None:
            rest = _remainder(kind, tensors, shape)
        added = apply_weight(module, x, rest.to(x))
        return added if kind.output is None else added + kind.output(_plain(tensors), x, module, y)

    def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
        count = math.prod(shapes[VALUES])
        if (shapes[INDICES], shapes[VALUES], shapes[SIZE]) != ((2, count), (count,), (2,)):
            return f"{INDICES} {shapes[INDICES]}, {VALUES} {shapes[VALUES]} and {SIZE} {shapes[SIZE]} make no sparse matrix"
        return kind.misfit(_plain(shapes), layer)

    return replace(
        kind,
        id=f"sparse-{kind.id}",
        label=f"{kind.label} with a sparse remainder",
        signatures=tuple(signature | {INDICES, VALUES, SIZE} for signature in kind.signatures),
        trainable=frozenset(),
        delta=delta,
        misfit=misfit,
        create=None,
        output=output if kind.output else None,
        prepare=prepare,
        low_rank=None,
        extract=None,
    )


def _plain(parts: Mapping[str, Value]) -> dict[str, Value]:
    extra = (INDICES, VALUES, SIZE, REMAINDER)
    return {suffix: part for suffix, part in parts.items() if suffix not in extra}


def _remainder(kind: NetworkType, tensors: Tensors, shape: LayerShape) -> Tensor:
    """Return the scaled remainder in the layer's shape. Raises FileFormatError when it is not one of this layer."""
    values = tensors[VALUES]
    if values.is_meta:  # what it takes is asked, not what it is
        return values.new_empty(shape.weight)
    size = (shape.weight[0], math.prod(shape.weight[1:]))
    indices = tensors[INDICES].to(device=values.device, dtype=torch.long)
    claimed = tuple(int(number) for number in tensors[SIZE])
    outside = indices.numel() and bool(
        (indices < 0).any() or (indices.amax(1) >= indices.new_tensor(size)).any()
    )
    if claimed != size or outside:
        raise FileFormatError(
            f"{SIZE} and {INDICES} describe a matrix of {claimed} or elements outside of it; the layer's is {size}."
        )
    matrix = torch.zeros(size, dtype=values.dtype, device=values.device)
    matrix = matrix.index_put(tuple(indices), values, accumulate=True)
    scale = scale_of(tensors, kind.rank(shapes_of(tensors))) if kind.rank else 1.0
    return matrix.reshape(shape.weight) * scale
