"""The names that files give to the tensors of one layer, and what they are in our own, which are kohya's and LyCORIS'.

PEFT, three generations of diffusers and HCP have names of their own for the factors of a LoRA; every other type is spelled as
LyCORIS spells it wherever it is found.
"""

from __future__ import annotations

import math
from functools import lru_cache

from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP

DORA = "dora_scale"
SCALE = "scale"  # alpha / rank itself, told instead of an alpha
MAGNITUDE = "lora_magnitude_vector"
LORA_BIAS = "lora_B.bias"  # PEFT's bias of `lora_B`, which the scale multiplies like the rest

LORA_SUFFIXES = {
    "lora_A": DOWN,
    "lora_B": UP,
    "lora_A.weight": DOWN,
    "lora_B.weight": UP,
    "lora.down.weight": DOWN,
    "lora.up.weight": UP,
    "lora_linear_layer.down.weight": DOWN,
    "lora_linear_layer.up.weight": UP,
}
# PEFT puts the adapter's name between these and ".weight", "default" when it has none.
PEFT_HEADS = {"lora_A": DOWN, "lora_B": UP, MAGNITUDE: DORA}
# HCP-Diffusion, after its separator; its alpha is divided by the rank when training starts.
HCP_SEPARATOR = ".___."
HCP_SUFFIXES = {
    "layer.W_down": DOWN,
    "layer.W_up": UP,
    "layer.lora_down.weight": DOWN,
    "layer.lora_up.weight": UP,
    ALPHA: SCALE,
}


@lru_cache(maxsize=256)
def our_suffix(written: str) -> str:
    """Return our name of a tensor, the written one where we know no other."""
    found = LORA_SUFFIXES.get(written)
    if found is not None:
        return found
    head, _, rest = written.partition(".")
    if head not in PEFT_HEADS or rest.count(".") > 1:
        return written
    if not rest.endswith("bias"):
        return PEFT_HEADS[head]
    return LORA_BIAS if PEFT_HEADS[head] == UP else written


def is_magnitude(key: str) -> bool:
    """Tell whether a key names PEFT's DoRA magnitude, which has other dimensions than ours."""
    return MAGNITUDE in key


def dora_shape(magnitude: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape, (out, 1) or (out, 1, 1, 1), of a `dora_scale` per output for PEFT's (out,) or (1, out, 1, 1)."""
    ones = (1 for _ in range(max(1, len(magnitude) - 1)))
    return (math.prod(magnitude), *ones)
