"""How much a network adds to each block of the model: the Frobenius norm of its deltas at strength 1."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lib_lora.families.table import Family
from lib_lora.networks.contract import LayerShape, Tensors
from lib_lora.networks.lora import DOWN, MID, UP, low_rank

OUTSIDE = "rest"


def block_norms(
    family: Family, layers: Mapping[str, Tensors], scales: Mapping[str, float]
) -> dict[str, float]:
    """Return the norm of each changed block by "component block", such as "unet IN01", in the order of the family's table.

    layers, scales: the tensors of LoRA layers without their alphas, and alpha / rank, by layer id.
    """
    squares: dict[str, float] = {}
    for component in family.components:
        for row in component.rows:
            layer_id = f"{component.name}.{row.path}"
            if layer_id in layers:
                block = f"{component.name} {row.block or OUTSIDE}"
                added = scales[layer_id] ** 2 * _square(layers[layer_id])
                squares[block] = squares.get(block, 0.0) + added
    return {block: math.sqrt(square) for block, square in squares.items()}


def _square(tensors: Tensors) -> float:
    """Return the sum of squares of up @ down, from two matrices of rank by rank instead of one of the layer's size."""
    exact = {suffix: tensor.float() for suffix, tensor in tensors.items()}
    kernel = exact[MID if MID in exact else DOWN].shape[2:]
    shape = LayerShape((exact[UP].shape[0], exact[DOWN].shape[1], *kernel))
    factors = low_rank(exact, shape)
    down = factors.down.flatten(1)  # (rank, in * kh * kw)
    return max(0.0, float(((factors.up.T @ factors.up) * (down @ down.T)).sum()))
