"""LoKr: delta = scale * kron(w1, w2), a Kronecker product whose factors may be products themselves.

Yeh et al., 2023, "Navigating Text-To-Image Customization: From LyCORIS Fine-Tuning to Model Evaluation". w1 is (o1, i1), whole or
w1_a @ w1_b; w2 is (o2, i2[, kh, kw]), whole, w2_a @ w2_b with the kernel in the columns, or two 1x1 factors around a core t2. The
layer is (o1 * o2, i1 * i2[, kh, kw]). The scale is alpha / rank with the rank of w2_b, or else of w1_b; when both factors are whole
there is no rank, and the scale is 1 whatever alpha says.
"""

from __future__ import annotations

import math

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
    claim_misfit,
    fold_core,
    product_claim,
    scale_of,
    shapes_of,
)
from lib_lora.networks.lora import nearest_product, uniform

W1, W1_A, W1_B = "lokr_w1", "lokr_w1_a", "lokr_w1_b"
W2, W2_A, W2_B, T2 = "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"
FIRSTS = (frozenset({W1}), frozenset({W1_A, W1_B}))
SECONDS = (frozenset({W2}), frozenset({W2_A, W2_B}))


def rank(shapes: Shapes) -> int | None:
    """Return what alpha is divided by, `None` when both factors are whole."""
    return next((shapes[suffix][0] for suffix in (W2_B, W1_B) if suffix in shapes), None)


def scale(tensors: Tensors) -> float:
    """Return alpha / rank, 1 when there is no alpha or no rank."""
    return scale_of(tensors, rank(shapes_of(tensors)))


def split(size: int, factor: int) -> tuple[int, int]:
    """Return a smaller and a larger factor of a size, as LyCORIS chooses them.

    They are `factor` and what it leaves where it divides the size, else the most even pair with a smaller one of at most `factor`;
    -1 sets no bound.
    """
    if factor > 0 and size % factor == 0:
        smaller = min(factor, size // factor)
    else:
        bound = math.isqrt(size) if factor < 0 else min(factor, math.isqrt(size))
        smaller = next(n for n in range(bound, 0, -1) if size % n == 0)
    return smaller, size // smaller


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network whose delta is exactly 0: w1 whole and w2 zero, or a product with a zero w2_a.

    w2 is whole where a product of the options' rank would hold about as many numbers, as LyCORIS decides it.
    """
    (o1, o2), (i1, i2) = (split(size, options.factor) for size in shape.weight[:2])
    tensors = {W1: uniform(o1, i1, generator=generator), ALPHA: alpha_for(options)}
    if not _worth_factors(options.rank, o2, i2):
        tensors[W2] = torch.zeros(o2, i2, *shape.kernel)
        tensors[ALPHA] = torch.tensor(float(options.rank))  # a scale of 1 for every reader
    elif options.tucker and math.prod(shape.kernel) > 1:
        tensors[W2_A] = torch.zeros(options.rank, o2)
        tensors[W2_B] = uniform(options.rank, i2, generator=generator)
        tensors[T2] = uniform(options.rank, options.rank, *shape.kernel, generator=generator)
    else:
        tensors[W2_A] = torch.zeros(o2, options.rank)
        columns = i2 * math.prod(shape.kernel)
        tensors[W2_B] = uniform(options.rank, columns, generator=generator)
    return {s: t if s == ALPHA else t.to(options.dtype) for s, t in tensors.items()}


def _worth_factors(wanted: int, rows: int, columns: int) -> bool:
    return wanted < max(rows, columns) / 2


def _first(tensors: Tensors) -> Tensor:
    """Return w1 as a matrix (o1, i1)."""
    return tensors[W1] if W1 in tensors else tensors[W1_A] @ tensors[W1_B]


def _second(tensors: Tensors) -> tuple[Tensor, ...]:
    """Return w2 as one matrix (o2, i2 * kh * kw), or as two whose product it is."""
    if W2 in tensors:
        return (tensors[W2].flatten(1),)
    if T2 in tensors:
        return tensors[W2_A].t(), fold_core(tensors[T2], tensors[W2_B]).flatten(1)
    return tensors[W2_A], tensors[W2_B]


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return scale * kron(w1, w2) in the layer's own shape."""
    second = _second(tensors)
    whole = second[0] @ second[1] if len(second) == 2 else second[0]
    product = torch.kron(_first(tensors).contiguous(), whole.contiguous())
    return Delta((product * scale(tensors)).reshape(shape.weight))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return scale * kron(w1, w2) x by its parts: w2 on each of i1 groups of channels, then w1 across the groups."""
    first = _first(tensors) * scale(tensors)
    if isinstance(module, nn.Conv2d):
        return _convolved(first, _second(tensors), x, module)
    hidden = x.reshape(*x.shape[:-1], first.shape[1], -1)  # (..., i1, i2)
    for matrix in reversed(_second(tensors)):
        hidden = functional.linear(hidden, matrix)
    return torch.einsum("ac,...cb->...ab", first, hidden).flatten(-2)


def _convolved(first: Tensor, second: tuple[Tensor, ...], x: Tensor, module: nn.Conv2d) -> Tensor:
    groups = first.shape[1]
    inputs = x.reshape(-1, x.shape[-3] // groups, *x.shape[-2:])  # (batch * i1, i2, h, w)
    kernel = second[-1].reshape(-1, inputs.shape[1], *module.weight.shape[2:])
    hidden = apply_weight(module, inputs, kernel)
    for matrix in second[:-1]:
        hidden = functional.conv2d(hidden, matrix[:, :, None, None])
    grouped = hidden.reshape(-1, groups, *hidden.shape[1:])  # (batch, i1, o2, h', w')
    return torch.einsum("ac,ncbhw->nabhw", first, grouped).flatten(1, 2)


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why the factors make no Kronecker product, or none for this layer."""
    for whole, parts in ((W1, W1_A), (W2, W2_A), (W2, T2)):
        if whole in shapes and parts in shapes:
            return f"{whole} and {parts} are two forms of one factor"
    first = shapes[W1] if W1 in shapes else product_claim(shapes[W1_A], shapes[W1_B])
    second = shapes[W2] if W2 in shapes else product_claim(*_parts(shapes))
    if first is None or len(first) != 2 or 0 in first:
        return f"{_named(shapes, W1)} make no factor of a Kronecker product"
    if second is None or len(second) not in (2, 4) or 0 in second:
        return f"{_named(shapes, W2)} make no factor of a Kronecker product"
    if layer is not None and layer[1] % first[1]:
        return f"its first factor {first} does not divide the layer {layer}"
    return claim_misfit((first[0] * second[0], first[1] * second[1], *second[2:]), layer)


def _parts(shapes: Shapes) -> tuple[Shape, ...]:
    return tuple(shapes[suffix] for suffix in (W2_A, W2_B, T2) if suffix in shapes)


def _named(shapes: Shapes, factor: str) -> str:
    names = [s for s in shapes if s.startswith(factor) or (s == T2 and factor == W2)]
    return ", ".join(f"{suffix} {shapes[suffix]}" for suffix in sorted(names))


def extract(difference: Tensor, wanted: int) -> dict[str, Tensor]:
    """Return the most even LoKr nearest to a weight difference, its w2 then cut to rank `wanted` where that saves numbers.

    The nearest Kronecker product is the nearest rank-1 matrix of the rearranged difference: Van Loan and Pitsianis, 1993,
    "Approximation with Kronecker Products".
    """
    (o1, o2), (i1, i2) = (split(size, -1) for size in difference.shape[:2])
    blocks = difference.reshape(o1, o2, i1, -1).permute(0, 2, 1, 3)  # (o1, i1, o2, i2 * kh * kw)
    left, right = nearest_product(blocks.reshape(o1 * i1, -1), 1)
    second = right.reshape(o2, -1)
    if not _worth_factors(wanted, o2, i2):
        return {W1: left.reshape(o1, i1), W2: second.reshape(o2, i2, *difference.shape[2:])}
    a, b = nearest_product(second, wanted)
    return {
        W1: left.reshape(o1, i1),
        W2_A: a,
        W2_B: b,
        ALPHA: torch.tensor(float(len(b))),
    }


LOKR = NetworkType(
    id="lokr",
    label="LoKr",
    signatures=tuple(first | second for first in FIRSTS for second in SECONDS),
    optional=frozenset({T2, ALPHA}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({W1, W1_A, W1_B, W2, W2_A, W2_B, T2}),
    delta=delta,
    misfit=misfit,
    rank=rank,
    create=create,
    output=output,
    extract=extract,
)
