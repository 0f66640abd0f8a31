"""GLoRA: delta = s * (b1 b2 + W a1 a2), a low-rank change of the weight and one of its input.

Chavan et al., 2023, "One-for-All: Generalized LoRA for Parameter-Efficient Fine-Tuning", as LyCORIS has it. a1 (in, r), a2 (r, in),
b1 (out, r), b2 (r, in); s = alpha / r. On a convolution all are 1x1 but b2 (r, in, kh, kw), or, with `bm` (r, r, kh, kw) between
b1 and b2 (CP), none.

Up to LyCORIS 2.2 the factors had each other's names, a1 (r, in), a2 (in, r), b1 (r, in), b2 (out, r), and its forward applied s twice:
s = (alpha / r)^2. The shapes tell the two apart, but on a square layer with r = out, which is read as new.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib_lora.networks.contract import (
    ALPHA,
    CreateOptions,
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    alpha_for,
    apply_weight,
    at_least_float32,
    claim_misfit,
    scale_of,
    shapes_of,
)

A1, A2, B1, B2 = "a1.weight", "a2.weight", "b1.weight", "b2.weight"
MIDDLE = "bm.weight"
TURNED = "turned"  # W a1, once it is computed


class Factors(NamedTuple):
    """The factors in the order in which they stand in the formula, as matrices, with the scale.

    outer: (out, r); inner: (r, in * kh * kw); left: (in, r); right: (r, in).
    """

    outer: Tensor
    inner: Tensor
    left: Tensor
    right: Tensor
    scale: float


def rank(shapes: Shapes) -> int:
    """Return the number that all factors share, in either layout the smaller side of b1."""
    return min(shapes[B1][:2])


def is_old(shapes: Shapes, layer: Shape) -> bool:
    """Tell whether the factors have the names that they had up to LyCORIS 2.2."""
    return shapes[A1][0] != layer[1] or shapes[B1][0] != layer[0]


def factors(tensors: Tensors, shape: LayerShape) -> Factors:
    """Return the factors of either layout."""
    old = is_old(shapes_of(tensors), shape.weight)
    names = (B2, B1, A2, A1) if old else (B1, B2, A1, A2)
    outer, inner, left, right = (tensors[name].flatten(1) for name in names)
    if MIDDLE in tensors:
        inner = torch.einsum("prkl,ri->pikl", tensors[MIDDLE], inner).flatten(1)
    scale = scale_of(tensors, len(right))
    return Factors(outer, inner, left, right, scale**2 if old else scale)


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network whose delta is exactly 0: a1 and b1 zero, the others Kaiming-uniform with a = sqrt(5)."""
    (out, inputs), rank = shape.weight[:2], options.rank
    ones = tuple(1 for _ in shape.kernel)
    core = options.tucker and math.prod(shape.kernel) > 1
    sizes = {
        A1: (inputs, rank, *ones),
        A2: (rank, inputs, *ones),
        B1: (out, rank, *ones),
        B2: (rank, inputs, *(ones if core else shape.kernel)),
        **({MIDDLE: (rank, rank, *shape.kernel)} if core else {}),
    }
    tensors = {suffix: torch.zeros(size) for suffix, size in sizes.items()}
    for suffix in sorted(sizes.keys() - {A1, B1}):
        bound = 1.0 / math.sqrt(math.prod(sizes[suffix][1:]))
        tensors[suffix].uniform_(-bound, bound, generator=generator)
    return {
        **{suffix: tensor.to(options.dtype) for suffix, tensor in tensors.items()},
        ALPHA: alpha_for(options),
    }


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return s * (b1 b2 + W a1 a2); W is multiplied along its inputs."""
    outer, inner, left, right, scale = factors(tensors, shape)
    turned = torch.einsum("oi...,ir,rj->oj...", base, left, right)
    return Delta(((outer @ inner).reshape(shape.weight) + turned) * scale)


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return s * (b1 (b2 x) + W (a1 (a2 x))), thin products and, unless W a1 is there, the layer's own weight."""
    weight = module.get_parameter("weight")
    shape = LayerShape(tuple(weight.shape))
    outer, inner, left, right, scale = factors(tensors, shape)
    hidden = apply_weight(module, x, inner.reshape(-1, *shape.weight[1:]))
    narrow = _mixed(x, right)
    if TURNED in tensors:
        changed = apply_weight(module, narrow, tensors[TURNED].to(x))
    else:
        changed = apply_weight(module, _mixed(narrow, left), weight.to(x))
    return (_mixed(hidden, outer) + changed) * scale


def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
    """Return the factors and W a1, (out, r[, kh, kw]), summed in float32 at least."""
    exact = at_least_float32(base)
    left = factors(tensors, shape).left.to(exact)
    return {**tensors, TURNED: torch.einsum("oi...,ir->or...", exact, left)}


def _mixed(x: Tensor, matrix: Tensor) -> Tensor:
    """Return a matrix times the channels of an activation; only those of a convolution have four dimensions."""
    if x.ndim == 4:
        return functional.conv2d(x, matrix[:, :, None, None])
    return functional.linear(x, matrix)


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse factors that do not belong together in either layout, or not to the layer."""
    layouts = [_claimed(shapes, *names) for names in ((B1, B2, A1, A2), (B2, B1, A2, A1))]
    claims = [claim for claim in layouts if claim is not None]
    if not claims:
        return f"{A1} {shapes[A1]}, {A2} {shapes[A2]}, {B1} {shapes[B1]} and {B2} {shapes[B2]} do not belong together"
    reasons = [claim_misfit(claim, layer) for claim in claims]
    return None if None in reasons else reasons[0]


def _claimed(shapes: Shapes, outer: str, inner: str, left: str, right: str) -> Shape | None:
    """Return the shape of the delta when these are the names of the factors, `None` when they cannot be."""
    if any(len(shapes[suffix]) not in (2, 4) for suffix in (outer, inner, left, right)):
        return None
    (out, rank), (inside, inputs) = shapes[outer][:2], shapes[inner][:2]
    fits = rank > 0 and rank == inside and shapes[left][:2] == (inputs, rank)
    points = all(math.prod(shapes[suffix][2:]) == 1 for suffix in (outer, left, right))
    if not fits or not points or shapes[right][:2] != (rank, inputs):
        return None
    if MIDDLE not in shapes:
        return (out, *shapes[inner][1:])
    core = shapes[MIDDLE]
    fits = len(core) == 4 and core[:2] == (rank, rank) and math.prod(shapes[inner][2:]) == 1
    return (out, inputs, *core[2:]) if fits else None


GLORA = NetworkType(
    id="glora",
    label="GLoRA",
    signatures=(frozenset({A1, A2, B1, B2}),),
    optional=frozenset({ALPHA, MIDDLE}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({A1, A2, B1, B2, MIDDLE}),
    delta=delta,
    misfit=misfit,
    rank=rank,
    create=create,
    output=output,
    prepare=prepare,
    reads_base=True,
)
