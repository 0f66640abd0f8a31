"""LoHa: delta = (alpha / rank) * (a1 @ b1) * (a2 @ b2), the elementwise product of two low-rank matrices.

Hyeon-Woo et al., 2021, "FedPara: Low-Rank Hadamard Product for Communication-Efficient Federated Learning"; tensor names and
the cores t1, t2 of convolutions (a and b are then 1x1 factors, a is stored transposed) as in LyCORIS. The rank is that of b1.
Which delta a LoHa is nearest to has no closed form: there is no `extract`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lib_lora.networks.contract import (
    ALPHA,
    CreateOptions,
    Delta,
    LayerShape,
    LowRank,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    alpha_for,
    apply_low_rank,
    apply_weight,
    claim_misfit,
    fold_core,
    product_claim,
    scale_of,
)

A1, B1, T1 = "hada_w1_a", "hada_w1_b", "hada_t1"
A2, B2, T2 = "hada_w2_a", "hada_w2_b", "hada_t2"
HALVES = ((A1, B1, T1), (A2, B2, T2))

ROW_BLOCKS = 8


def scale(tensors: Tensors) -> float:
    """Return alpha / rank, 1 when the file holds no alpha."""
    return scale_of(tensors, tensors[B1].shape[0])


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network whose delta is exactly 0: a2 zero, the others normal, of deviation 0.1 for a1 and the cores, else 1."""
    out, inputs = shape.weight[:2]
    core = options.tucker and math.prod(shape.kernel) > 1
    columns = inputs if core else inputs * math.prod(shape.kernel)
    tensors = {ALPHA: alpha_for(options)}
    for (a, b, t), deviation in zip(HALVES, (0.1, 0.0), strict=True):
        rows = (options.rank, out) if core else (out, options.rank)
        drawn: dict[str, tuple[float, Shape]] = {
            a: (deviation, rows),
            b: (1.0, (options.rank, columns)),
        }
        if core:
            drawn[t] = (0.1, (options.rank, options.rank, *shape.kernel))
        for suffix, (spread, size) in drawn.items():
            values = spread * torch.randn(size, generator=generator)
            tensors[suffix] = values.to(options.dtype)
    return tensors


def _halves(tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
    """Return the factors (out, rank) and (rank, in * kh * kw) of both matrices."""
    return [
        (tensors[a].t(), fold_core(tensors[t], tensors[b]).flatten(1))
        if t in tensors
        else (tensors[a], tensors[b])
        for a, b, t in HALVES
    ]


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return scale * (a1 @ b1) * (a2 @ b2) in the layer's own shape."""
    (a1, b1), (a2, b2) = _halves(tensors)
    return Delta(((a1 @ b1) * (a2 @ b2) * scale(tensors)).reshape(shape.weight))


def low_rank(tensors: Tensors, shape: LayerShape) -> LowRank | None:
    """Return the exact product of rank r1 * r2, or `None` when it holds more numbers than the weight.

    Row-wise Khatri-Rao: (a1 @ b1) * (a2 @ b2) = sum over p, q of (a1_p * a2_q) (b1_p * b2_q)^T. Each number is one multiplication for
    every position of the input, as each number of the weight is, so that the smaller of the two is the cheaper.
    """
    (a1, b1), (a2, b2) = _halves(tensors)
    rank = a1.shape[1] * a2.shape[1]
    out, columns = shape.weight[0], math.prod(shape.weight[1:])
    if rank * (out + columns) >= out * columns:
        return None
    up = (a1[:, :, None] * a2[:, None, :]).flatten(1)  # (out, r1 * r2)
    down = (b1[:, None, :] * b2[None, :, :]).flatten(0, 1)  # (r1 * r2, in * kh * kw)
    return LowRank(down.reshape(rank, *shape.weight[1:]), up * scale(tensors))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return what the product adds where it is cheaper, else what blocks of the delta's rows add, one after the other."""
    shape = LayerShape(tuple(module.get_parameter("weight").shape))
    factors = low_rank(tensors, shape)
    if factors is not None:
        return apply_low_rank(module, x, factors)
    (a1, b1), (a2, b2) = _halves(tensors)
    rows = math.ceil(shape.weight[0] / ROW_BLOCKS)
    added = [
        apply_weight(module, x, ((up1 @ b1) * (up2 @ b2)).reshape(-1, *shape.weight[1:]))
        for up1, up2 in zip(torch.split(a1, rows), torch.split(a2, rows), strict=True)
    ]
    return torch.cat(added, dim=-3 if shape.kind == "conv" else -1) * scale(tensors)


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why the factors make no two matrices of one size, or none for this layer."""
    claims = []
    for half in HALVES:
        sizes = {suffix: shapes[suffix] for suffix in half if suffix in shapes}
        claim = product_claim(*sizes.values())
        if claim is None:
            named = ", ".join(f"{suffix} {size}" for suffix, size in sizes.items())
            return f"{named} have no common rank"
        claims.append(claim)
    one, two = claims
    if (one[0], math.prod(one)) != (two[0], math.prod(two)):
        return f"its two matrices have the shapes {one} and {two}"
    return claim_misfit(one, layer) or claim_misfit(two, layer)


LOHA = NetworkType(
    id="loha",
    label="LoHa",
    signatures=(frozenset({A1, B1, A2, B2}),),
    optional=frozenset({T1, T2, ALPHA}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({A1, B1, T1, A2, B2, T2}),
    delta=delta,
    misfit=misfit,
    rank=lambda shapes: shapes[B1][0],
    create=create,
    output=output,
    low_rank=low_rank,
)
