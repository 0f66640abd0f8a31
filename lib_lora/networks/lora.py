"""LoRA and LoCon: delta = (alpha / rank) * up @ down.

Linear layers: Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models". Convolutions: the kernel belongs to `down`
and `up` is 1x1 (cloneofsimo/lora and LyCORIS' LoCon); or to a core `mid` between 1x1 factors (LyCORIS' use_tucker), which is folded
into `down`. A missing alpha means alpha = rank, as every loader reads it. A rank-stabilized network needs no mark: its alpha is
stored times sqrt(rank).
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
    claim_misfit,
    fold_core,
    scale_of,
)

DOWN, MID, UP = "lora_down.weight", "lora_mid.weight", "lora_up.weight"


def rank(tensors: Tensors) -> int:
    """Return the number of rows of `down`."""
    return tensors[DOWN].shape[0]


def scale(tensors: Tensors) -> float:
    """Return alpha / rank, 1 when the file holds no alpha."""
    return scale_of(tensors, rank(tensors))


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network whose delta is exactly 0: `down` Kaiming-uniform with a = sqrt(5), `up` zero (Hu et al., 4.1)."""
    out, inputs = shape.weight[:2]
    ones = tuple(1 for _ in shape.kernel)
    core = options.tucker and math.prod(shape.kernel) > 1
    down = uniform(
        options.rank, inputs, *(ones if core else shape.kernel), generator=generator
    )  # (rank, in) or (rank, in, kh, kw)
    tensors = {
        DOWN: down.to(options.dtype),
        UP: torch.zeros(out, options.rank, *ones, dtype=options.dtype),  # (out, rank[, 1, 1])
        ALPHA: alpha_for(options),
    }
    if core:
        mid = uniform(options.rank, options.rank, *shape.kernel, generator=generator)
        tensors[MID] = mid.to(options.dtype)  # (rank, rank, kh, kw)
    return tensors


def uniform(*size: int, generator: torch.Generator) -> Tensor:
    """Return a float32 tensor drawn as torch draws the weight of a fresh layer: Kaiming-uniform with a = sqrt(5)."""
    bound = 1.0 / math.sqrt(math.prod(size[1:]))
    return torch.empty(*size).uniform_(-bound, bound, generator=generator)


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return scale * up @ down in the layer's own shape; a 1x1 convolution and a linear layer hold the same numbers."""
    product = tensors[UP].flatten(1) @ _down(tensors).flatten(1)  # (out, in * kh * kw)
    return Delta((product * scale(tensors)).reshape(shape.weight))


def low_rank(tensors: Tensors, shape: LayerShape) -> LowRank:
    """Return `down` in the layer's own number of dimensions, and `up` as a matrix times the scale."""
    up = tensors[UP].flatten(1)
    return LowRank(
        _down(tensors).reshape(up.shape[1], *shape.weight[1:]),
        up * scale(tensors),
    )


def _down(tensors: Tensors) -> Tensor:
    down = tensors[DOWN]
    return fold_core(tensors[MID], down.flatten(1)) if MID in tensors else down


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return scale * up(down(x)), two thin products instead of a weight of the layer's size."""
    shape = LayerShape(tuple(module.get_parameter("weight").shape))
    return apply_low_rank(module, x, low_rank(tensors, shape))


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why the factors make no delta, or none for this layer."""
    down, up = shapes[DOWN], shapes[UP]
    if len(down) not in (2, 4) or len(up) not in (2, 4) or math.prod(up[2:]) != 1:
        return f"{DOWN} {down} and {UP} {up} are no pair of factors"
    mid = shapes.get(MID, (down[0], down[0]))
    if mid[:2] != (up[1], down[0]) or 0 in mid[:2]:
        between = f", {MID} {mid}" if MID in shapes else ""
        return f"{DOWN} {down}{between} and {UP} {up} have no common rank"
    if MID in shapes and (len(mid) != 4 or math.prod(down[2:]) != 1):
        return f"{MID} {mid} is no kernel between {DOWN} {down} and {UP} {up}"
    return claim_misfit((up[0], down[1], *(mid[2:] or down[2:])), layer)


def truncated(tensors: Tensors, dim: int) -> dict[str, Tensor]:
    """Return the network of the first `dim` ranks, at least 1, with the scale of all of them: `dyn` of the live WebUI.

    As there, a network with a core is left whole, and so is one of fewer ranks.
    """
    if MID in tensors or dim >= rank(tensors):
        return dict(tensors)
    kept = {DOWN: tensors[DOWN][:dim], UP: tensors[UP][:, :dim]}
    return {**tensors, **kept, ALPHA: torch.tensor(scale(tensors) * dim)}


def extract(difference: Tensor, wanted: int) -> dict[str, Tensor]:
    """Return the network of rank `wanted` nearest to a weight difference (truncated SVD, Eckart and Young, 1936)."""
    left, right = nearest_product(difference.flatten(1), wanted)
    ones = tuple(1 for _ in difference.shape[2:])
    return {
        DOWN: right.reshape(-1, *difference.shape[1:]),
        UP: left.reshape(*left.shape, *ones),
        ALPHA: torch.tensor(float(left.shape[1])),
    }


def nearest_product(matrix: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the factors (rows, rank) and (rank, columns) of the nearest matrix of rank `wanted`, the root of the SVD in each.

    Computed in float64, returned in the dtype of `matrix`; the rank is at most the matrix' own dimensions.
    """
    kept = min(wanted, *matrix.shape)
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    root = s[:kept].sqrt()
    return (u[:, :kept] * root).to(matrix.dtype), (root[:, None] * v[:kept]).to(matrix.dtype)


LORA = NetworkType(
    id="lora",
    label="LoRA / LoCon",
    signatures=(frozenset({DOWN, UP}),),
    optional=frozenset({MID, ALPHA}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({DOWN, MID, UP}),
    delta=delta,
    misfit=misfit,
    rank=lambda shapes: shapes[DOWN][0],
    create=create,
    output=output,
    low_rank=low_rank,
    extract=extract,
)
