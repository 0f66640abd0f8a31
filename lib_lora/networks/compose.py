"""The composition law: W' = W + sum of strength_i * delta_i(W), every delta on the unmodified base.

Order-free and linear in every strength; the same live and baked. The network types this project knows are listed here.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from lib_lora.networks.boft import BOFT
from lib_lora.networks.contract import (
    Delta,
    LayerNetwork,
    LayerShape,
    NetworkType,
    Shapes,
    misfit,
)
from lib_lora.networks.dora import with_dora
from lib_lora.networks.full import FULL, SET_WEIGHT, with_bias
from lib_lora.networks.glora import GLORA
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import LORA
from lib_lora.networks.norm import NORM
from lib_lora.networks.oft import OFT
from lib_lora.networks.sparse import with_remainder

NETWORK_TYPES: tuple[NetworkType, ...] = (
    *(LORA, LOHA, LOKR),
    *(IA3, OFT, BOFT, GLORA),
    *(FULL, SET_WEIGHT, NORM),
)

WITH_MAGNITUDES: tuple[NetworkType, ...] = (LORA, LOHA, LOKR)
DORA_TYPES: tuple[NetworkType, ...] = tuple(with_dora(kind) for kind in WITH_MAGNITUDES)
EXTRACTED_TYPES: tuple[NetworkType, ...] = (with_remainder(LORA), with_bias(LORA))


def network_type_of(shapes: Shapes) -> NetworkType | None:
    """Return the type of one layer's tensors, `None` when there is none.

    Of the types with a signature among the suffixes it is the first that the shapes fit, else the first, whose `misfit` then tells
    what is wrong.
    """
    found = shapes.keys()
    kinds = [
        kind
        for kind in (*DORA_TYPES, *EXTRACTED_TYPES, *NETWORK_TYPES)
        if any(signature <= found for signature in kind.signatures)
    ]
    fitting = (kind for kind in kinds if misfit(kind, shapes, None) is None)
    return next(fitting, kinds[0] if kinds else None)


def incomplete(shapes: Shapes) -> frozenset[str]:
    """Return the suffixes that are missing for the type which most of the suffixes begin, none when they begin no type."""
    found = shapes.keys()
    begun = [
        (len(signature & found), signature - found)
        for kind in NETWORK_TYPES
        for signature in kind.signatures
        if signature & found
    ]
    return max(begun, key=lambda part: (part[0], -len(part[1])), default=(0, frozenset()))[1]


def compose(base: Tensor, uses: Iterable[tuple[LayerNetwork, float]]) -> Delta:
    """Return the sum of strength * delta over the networks of one layer, in the dtype of `base`.

    base: the unmodified weight, in the precision that the sum is to have; each network's tensors are brought to it first, integers
    to its device alone.
    """
    shape = LayerShape(tuple(base.shape))
    weight: Tensor | None = None
    bias: Tensor | None = None
    for network, strength in uses:
        tensors = {suffix: _brought(tensor, base) for suffix, tensor in network.tensors.items()}
        part = network.type.delta(tensors, base, shape)
        weight = _add(weight, part.weight, strength)
        bias = _add(bias, part.bias, strength)
    return Delta(weight, bias)


def _brought(tensor: Tensor, base: Tensor) -> Tensor:
    return tensor.to(base) if tensor.is_floating_point() else tensor.to(base.device)


def _add(total: Tensor | None, part: Tensor | None, strength: float) -> Tensor | None:
    if part is None:
        return total
    return part * strength if total is None else total + part * strength
