"""Block weights: how strongly a network acts on each part of a UNet and on the text encoders.

Names, lists and presets are those of sd-webui-lora-block-weight, so that its tags mean the same. A list names the blocks that the LoRA of a
family have; what it does not name does not act. Layers outside of all blocks, such as the time embedding, always act in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BASE = "BASE"
"""All text encoders."""


def _numbered(side: str, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"{side}{number:02}" for number in numbers)


BLOCKS = (BASE, *_numbered("IN", range(12)), "M00", *_numbered("OUT", range(12)))
LISTS: Mapping[int, tuple[str, ...]] = {
    12: (BASE, *_numbered("IN", (4, 5, 7, 8)), "M00", *_numbered("OUT", range(6))),
    17: (BASE, *_numbered("IN", (1, 2, 4, 5, 7, 8)), "M00", *_numbered("OUT", range(3, 12))),
    20: (BASE, *_numbered("IN", range(9)), "M00", *_numbered("OUT", range(9))),
    26: BLOCKS,
}
"""The blocks of a list by its length."""

# Of 17 values each.
PRESETS: Mapping[str, Sequence[float]] = {
    "NONE": [0.0] * 17,
    "ALL": [1.0] * 17,
    "INS": [1.0] * 4 + [0.0] * 13,
    "IND": [1.0] + [0.0] * 3 + [1.0] * 3 + [0.0] * 10,
    "INALL": [1.0] * 7 + [0.0] * 10,
    "MIDD": [1.0] + [0.0] * 3 + [1.0] * 8 + [0.0] * 5,
    "OUTD": [1.0] + [0.0] * 7 + [1.0] * 4 + [0.0] * 5,
    "OUTS": [1.0] + [0.0] * 11 + [1.0] * 5,
    "OUTALL": [1.0] + [0.0] * 7 + [1.0] * 9,
    "ALL0.5": [0.5] * 17,
}


@dataclass(frozen=True, slots=True)
class Element:
    """A factor for the layers of some blocks whose original key holds a word; it takes the place of their blocks' factor."""

    blocks: frozenset[str]
    word: str
    factor: float


_DEEP = frozenset(BLOCKS[BLOCKS.index("IN05") : BLOCKS.index("OUT05") + 1])
ELEMENTS: Mapping[str, Element] = {
    "ATTNDEEPON": Element(_DEEP, "attn", 1.0),
    "ATTNDEEPOFF": Element(_DEEP, "attn", 0.0),
    "PROJDEEPOFF": Element(_DEEP, "proj", 0.0),
}


def factors_of(values: Sequence[float]) -> dict[str, float]:
    """Return the factor of every block for a list of values; raises KeyError for a length that no list has."""
    named = dict(zip(LISTS[len(values)], values, strict=True))
    return {block: named.get(block, 0.0) for block in BLOCKS}


def factor_of(
    blocks: Mapping[str, float], elements: Iterable[Element], block: str | None, key: str
) -> float:
    """Return how strongly a network acts on a layer beside its strength; the last element that fits counts.

    key: the layer's in the original checkpoint, where the embedding of the time in a resnet is no "proj".
    """
    if block is None:
        return 1.0
    factor = blocks.get(block, 1.0)
    for element in elements:
        if block in element.blocks and element.word in key:
            factor = element.factor
    return factor
