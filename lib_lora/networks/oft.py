"""OFT: W + delta = rescale * R^T W, where R turns each block of b neighbouring output rows by its own rotation.

R = (I + Q)(I - Q)^-1 with the skew Q = B - B^T of the stored blocks B (Cayley), so that R - I = 2 (I - Q)^-1 Q. Qiu et al., 2023,
"Controlling Text-to-Image Diffusion by Orthogonal Finetuning"; tensors and forward are those of kohya's `networks/oft.py` and of
LyCORIS' Diag-OFT, which differ in nothing but the meaning of a 0:

- `oft_blocks` (k, b, b) are B, with k b = out. `oft_diag`, the same in files of LyCORIS 2.0, are R itself.
- `alpha`: the Frobenius norm of all of Q is at most alpha * out. In LyCORIS' files, 0 or none stands for no bound. In kohya's 0
  is a bound like any other and leaves no rotation; `formats` names it `constraint` there.
- `rescale` (out, 1[, 1, 1]) multiplies the turned rows. A trainer's own multiplier m gives rescale * ((1 - m) W + m R^T W); here the
  finished delta is linear in the strength, equal at 1, and 0 is off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lib_lora.networks.contract import (
    ALPHA,
    CreateOptions,
    Delta,
    LayerShape,
    NetworkType,
    Shape,
    Shapes,
    Tensors,
    at_least_float32,
    without_bias,
)

BLOCKS, ROTATION, RESCALE, CONSTRAINT = "oft_blocks", "oft_diag", "rescale", "constraint"
TURNING = "turning"  # R - I, in the place of the blocks once it is computed
EPSILON = 1e-8  # the trainers' own, which keeps a Q of 0 defined


def bound(tensors: Tensors) -> float | None:
    """Return the largest norm that Q may have, `None` for any."""
    *_, count, size, _ = tensors[BLOCKS].shape
    if CONSTRAINT in tensors:
        return float(tensors[CONSTRAINT]) * count * size
    alpha = float(tensors.get(ALPHA, 0.0))
    return alpha * count * size if alpha else None


def turning(tensors: Tensors) -> Tensor:
    """Return R - I of the blocks, (..., k, b, b); below float32 no system is solved."""
    if TURNING in tensors:
        return tensors[TURNING]
    stored = tensors[BLOCKS] if BLOCKS in tensors else tensors[ROTATION]
    exact = at_least_float32(stored)
    identity = torch.eye(exact.shape[-1], dtype=exact.dtype, device=exact.device)
    if BLOCKS not in tensors:
        return exact - identity
    skew = exact - exact.mT
    limit = bound(tensors)
    if limit is not None:
        norm = torch.linalg.vector_norm(skew)
        skew = skew * ((norm.clamp(max=limit) + EPSILON) / (norm + EPSILON))
    return torch.linalg.solve(identity - skew, 2 * skew)


def rescaled(tensors: Tensors, rows: Tensor, added: Tensor) -> Tensor:
    """Return what is added to the rows in the end, when `added` comes from their rotation."""
    if RESCALE not in tensors:
        return added
    factors = tensors[RESCALE].reshape(-1, *(1 for _ in rows.shape[1:])).to(rows.dtype)
    return (factors - 1) * rows + factors * added


def added_rows(tensors: Tensors, rows: Tensor) -> Tensor:
    """Return what the network adds to (out, ...): the rows of a weight, or the channels of an output without bias."""
    turn = turning(tensors).to(rows.dtype)  # (k, b, b)
    blocks = rows.reshape(*turn.shape[:2], *rows.shape[1:])
    added = torch.einsum("knm,kn...->km...", turn, blocks).reshape(rows.shape)
    return rescaled(tensors, rows, added)


def create(
    shape: LayerShape, options: CreateOptions, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return fresh blocks, all 0, of the largest size that divides `out` and is at most the rank; without a bound.

    The alpha of the options is a scale, which OFT has not.
    """
    out = shape.weight[0]
    size = max(size for size in range(1, min(options.rank, out) + 1) if out % size == 0)
    blocks = torch.zeros(out // size, size, size, dtype=options.dtype)
    return {BLOCKS: blocks, ALPHA: torch.tensor(0.0)}


def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
    """Return rescale * R^T W - W."""
    return Delta(added_rows(tensors, base))


def output(tensors: Tensors, x: Tensor, module: nn.Module, y: Tensor) -> Tensor:
    """Return rescale * R^T y - y of the layer's output y without bias, which needs no second weight."""
    return on_channels(module, y, partial(added_rows, tensors))


def on_channels(module: nn.Module, y: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what `added`, which works on dimension 0, makes of the channels of the layer's output without bias."""
    channel = -3 if isinstance(module, nn.Conv2d) else -1
    return added(without_bias(module, y).movedim(channel, 0)).movedim(0, channel)


def prepare(tensors: Tensors, base: Tensor, shape: LayerShape) -> dict[str, Tensor]:
    """Return the solved rotations in the place of the blocks."""
    rest = {suffix: tensors[suffix] for suffix in (RESCALE,) if suffix in tensors}
    return {TURNING: turning(tensors), **rest}


def misfit(shapes: Shapes, layer: Shape | None) -> str | None:
    """Refuse what is no pile of square blocks that together are as long as the layer has rows."""
    suffix = BLOCKS if BLOCKS in shapes else ROTATION
    blocks = shapes[suffix]
    if len(blocks) != 3 or blocks[1] != blocks[2] or math.prod(blocks) == 0:
        return f"{suffix} {blocks} are no square blocks"
    return rows_misfit(shapes, blocks[0] * blocks[1], layer)


def rows_misfit(shapes: Shapes, rows: int, layer: Shape | None) -> str | None:
    """Refuse blocks for another number of rows than the layer's, and the wrong number of other values."""
    if math.prod(shapes.get(CONSTRAINT, ())) != 1:
        return f"{CONSTRAINT} {shapes[CONSTRAINT]} is not one number"
    if math.prod(shapes.get(RESCALE, (rows,))) != rows:
        return f"{RESCALE} {shapes[RESCALE]} does not hold one number for each of {rows} rows"
    if layer is not None and layer[0] != rows:
        return f"its blocks turn {rows} rows, the layer {layer} has {layer[0]}"
    return None


OFT = NetworkType(
    id="oft",
    label="OFT",
    signatures=(frozenset({BLOCKS}), frozenset({ROTATION})),
    optional=frozenset({ALPHA, CONSTRAINT, RESCALE}),
    kinds=frozenset({"linear", "conv"}),
    trainable=frozenset({BLOCKS, RESCALE}),
    delta=delta,
    misfit=misfit,
    create=create,
    output=output,
    prepare=prepare,
    reads_base=True,
)
