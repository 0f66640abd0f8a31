"""How much a network adds to each block of the model: the Frobenius norm of its deltas at strength 1."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from lib_lora.families.table import Family
from lib_lora.networks.contract import LayerNetwork, LayerShape, Tensors
from lib_lora.networks.full import FULL
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import DOWN, LORA, MID, UP, low_rank
from lib_lora.networks.norm import NORM

OUTSIDE = "rest"
# What the others add depends on the base, which is not there.
MEASURED = (LORA, LOHA, LOKR, FULL, NORM)
FLAT = LayerShape((-1,))  # a norm does not ask how numbers are arranged


def block_norms(family: Family, networks: Mapping[str, LayerNetwork]) -> dict[str, float]:
    """Return the norm of each changed block by "component block", such as "unet IN01", in the order of the family's table.

    networks: by layer id. Those of a type that is computed from the base are passed over, and so are changes of biases.
    """
    squares: dict[str, float] = {}
    for component in family.components:
        for row in component.rows:
            network = networks.get(f"{component.name}.{row.path}")
            if network is not None and network.type in MEASURED:
                block = f"{component.name} {row.block or OUTSIDE}"
                squares[block] = squares.get(block, 0.0) + _square(network)
    return {block: math.sqrt(square) for block, square in squares.items()}


def _square(network: LayerNetwork) -> float:
    exact = {suffix: tensor.float() for suffix, tensor in network.tensors.items()}
    if network.type is LORA:
        return _square_of_product(exact)
    delta = network.type.delta(exact, torch.empty(0), FLAT).weight
    return 0.0 if delta is None else float(delta.square().sum())


def _square_of_product(tensors: Tensors) -> float:
    """Return the sum of squares of up @ down, from two matrices of rank by rank instead of one of the layer's size."""
    kernel = tensors[MID if MID in tensors else DOWN].shape[2:]
    shape = LayerShape((tensors[UP].shape[0], tensors[DOWN].shape[1], *kernel))
    factors = low_rank(tensors, shape)
    down = factors.down.flatten(1)  # (rank, in * kh * kw)
    return max(0.0, float(((factors.up.T @ factors.up) * (down @ down.T)).sum()))
