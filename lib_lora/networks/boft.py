"""BOFT: W + delta = rescale * R_m ... R_1 W, where R_i turns blocks of b output rows that lie 2^(i-1) b/2 apart.

Liu et al., 2024, "Parameter-Efficient Orthogonal Finetuning via Butterfly Factorization"; tensors and forward are LyCORIS'.
`oft_blocks` is (m, k, b, b) with k b = out, each stage's rotations made as in `oft`. Before stage i the rows are put in the order in
which those of one block are neighbours, (c, 2, h) -> (c, h, 2) with h = 2^(i-1) b/2, and afterwards back. `alpha` and `rescale` are
those of `oft`; the bound is on the norm over all stages.

A trainer's own multiplier acts inside every stage and is no line; here the finished delta is linear in the strength and equal at 1.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from lib_lora.errors import UsageError
from lib_lora.networks.contract import (
    ALPHA,
    CreateOptions,
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
)
from lib_lora.networks.oft import (
    BLOCKS,
    RESCALE,
    on_channels,
    prepare,
    rescaled,
    rows_misfit,
    turning,
)


def added_rows(tensors: Tensors, rows: Tensor) -> Tensor:
    """Return what the network adds to (out, ...): the rows of a weight, or the channels of an output without bias."""
    added = torch.zeros_like(rows)
    for stage, turn in enumerate(turning(tensors).to(rows.dtype)):  # (k, b, b) each
        half = turn.shape[-1] // 2 * 2**stage
        near = _exchanged(rows + added, 2, half).reshape(*turn.shape[:2], *rows.shape[1:])
        step = torch.einsum("kmn,kn...->km...", turn, near).reshape(rows.shape)
        added = added + _exchanged(step, half, 2)
    return rescaled(tensors, rows, added)


def _exchanged(rows: Tensor, outer: int, inner: int) -> Tensor:
    """Return the rows (c, outer, inner) in the order (c, inner, outer)."""
    return rows.reshape(-1, outer, inner, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def block_size(out: int, rank: int) -> int:
    """Return the largest even size not above the rank that leaves a power of two blocks, the smallest of all when none is.

    Raises UsageError for an odd number of rows, which cannot be paired.
    """
    if out % 2:
        raise UsageError(f"BOFT pairs output rows; a layer with {out} of them cannot be trained.")
    sizes = [out >> stages for stages in range(out.bit_length()) if out % (2 << stages) == 0]
    return next((size for size in sizes if size <= rank), sizes[-1])


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return fresh blocks, all 0, in as many stages as mix all rows; without a bound.

    The alpha of the options is a scale, which BOFT has not. Raises UsageError for an odd number of rows.
    """
    out = shape.weight[0]
    size = block_size(out, options.rank)
    count = out // size  # a power of two
    blocks = torch.zeros(count.bit_length(), count, size, size, dtype=options.dtype)
    return {BLOCKS: blocks, ALPHA: torch.tensor(0.0)}


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return rescale * R_m ... R_1 W - W."""
    return Delta(added_rows(tensors, base))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return rescale * R_m ... R_1 y - y of the layer's output y without bias, which needs no second weight."""
    return on_channels(module, y, partial(added_rows, tensors))


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse what is no pile of square, even blocks with a stage for each doubling, for as many rows as the layer has."""
    blocks = shapes[BLOCKS]
    if len(blocks) != 4 or blocks[2] != blocks[3] or math.prod(blocks) == 0:
        return f"{BLOCKS} {blocks} are no stages of square blocks"
    stages, count, size = blocks[:3]
    if size % 2 or stages > count.bit_length() or count % 2 ** (stages - 1):
        return f"{BLOCKS} {blocks} do not pair the rows in each of {stages} stages"
    return rows_misfit(shapes, count * size, layer)


BOFT = NetworkType(
    id="boft",
    label="BOFT",
    signatures=(frozenset({BLOCKS}),),
    optional=frozenset({ALPHA, RESCALE}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({BLOCKS, RESCALE}),
    delta=delta,
    misfit=misfit,
    create=create,
    output=output,
    prepare=prepare,
    reads_base=True,
)
