"""LoRA and LoCon: delta = (alpha / rank) * up @ down.

Linear layers: Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models". Convolutions: the kernel belongs to `down`
and `up` is 1x1 (cloneofsimo/lora and LyCORIS' LoCon). A missing alpha means alpha = rank, as every loader reads it.
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
    apply_weight,
    claim_misfit,
)

DOWN, UP = "lora_down.weight", "lora_up.weight"


def rank(tensors: Tensors) -> int:
    """Return the number of rows of `down`."""
    return tensors[DOWN].shape[0]


def scale(tensors: Tensors) -> float:
    """Return alpha / rank, 1 when the file holds no alpha."""
    alpha = tensors.get(ALPHA)
    return 1.0 if alpha is None else float(alpha) / rank(tensors)


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a fresh network whose delta is exactly 0: `down` Kaiming-uniform with a = sqrt(5), `up` zero (Hu et al., 4.1)."""
    out, inputs = shape.weight[:2]
    bound = 1.0 / math.sqrt(inputs * math.prod(shape.kernel))
    down = torch.empty(options.rank, inputs, *shape.kernel)  # (rank, in) or (rank, in, kh, kw)
    down.uniform_(-bound, bound, generator=generator)
    up = torch.zeros(
        out, options.rank, *(1 for _ in shape.kernel)
    )  # (out, rank) or (out, rank, 1, 1)
    return {
        DOWN: down.to(options.dtype),
        UP: up.to(options.dtype),
        ALPHA: torch.tensor(options.alpha),
    }


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return scale * up @ down in the layer's own shape; a 1x1 convolution and a linear layer hold the same numbers."""
    down, up = tensors[DOWN], tensors[UP]
    product = up.flatten(1) @ down.flatten(1)  # (out, in * kh * kw)
    return Delta((product * scale(tensors)).reshape(shape.weight))


def low_rank(tensors: Tensors, shape: LayerShape) -> LowRank:
    """Return `down` in the layer's own number of dimensions, and `up` as a matrix times the scale."""
    down = tensors[DOWN].reshape(rank(tensors), *shape.weight[1:])
    return LowRank(down, tensors[UP].flatten(1) * scale(tensors))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return scale * up(down(x)), two thin products instead of a weight of the layer's size."""
    shape = LayerShape(tuple(module.get_parameter("weight").shape))
    factors = low_rank(tensors, shape)
    hidden = apply_weight(module, x, factors.down)
    if shape.kind == "conv":
        return torch.nn.functional.conv2d(hidden, factors.up[:, :, None, None])
    return torch.nn.functional.linear(hidden, factors.up)


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why two factors of these shapes make no delta, or none for this layer."""
    down, up = shapes[DOWN], shapes[UP]
    if len(down) not in (2, 4) or len(up) not in (2, 4) or math.prod(up[2:]) != 1:
        return f"{DOWN} {down} and {UP} {up} are no pair of factors"
    if down[0] != up[1] or down[0] == 0:
        return f"{DOWN} {down} and {UP} {up} have no common rank"
    claimed = (up[0], *down[1:])
    return claim_misfit(claimed, layer)


def extract(difference: Tensor, wanted: int) -> dict[str, Tensor]:
    """Return the network of rank `wanted` nearest to a weight difference (truncated SVD, Eckart and Young, 1936)."""
    matrix = difference.flatten(1)
    kept = min(wanted, *matrix.shape)
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    root = s[:kept].sqrt()
    ones = tuple(1 for _ in difference.shape[2:])
    up = (u[:, :kept] * root).reshape(-1, kept, *ones)
    down = (root[:, None] * v[:kept]).reshape(kept, *difference.shape[1:])
    dtype = difference.dtype
    return {DOWN: down.to(dtype), UP: up.to(dtype), ALPHA: torch.tensor(float(kept))}


LORA = NetworkType(
    id="lora",
    label="LoRA / LoCon",
    signatures=(frozenset({DOWN, UP}),),
    optional=frozenset({ALPHA}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({DOWN, UP}),
    delta=delta,
    misfit=misfit,
    rank=lambda shapes: shapes[DOWN][0],
    create=create,
    output=output,
    low_rank=low_rank,
    extract=extract,
)
