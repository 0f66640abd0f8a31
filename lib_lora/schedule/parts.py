"""The named parts of a tag that are no curves: which steps, blocks and ranks of a network act."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lib_lora.schedule.blocks import ELEMENTS, LISTS, PRESETS, Element, factors_of
from lib_lora.schedule.curve import Window
from lib_lora.schedule.pieces import Piece, number_of, strength_of

NAMES = ("start", "stop", "step", "dyn", "lbw", "lbwe", "x")


def window_of(named: Mapping[str, Piece]) -> Window:
    """Return the steps that `start=` and `stop=` name, or `step=` both of them."""
    whole = named.get("step")
    edges = whole.split("-") if whole else [named.get("start"), named.get("stop")]
    if whole and (len(edges) != 2 or named.keys() & {"start", "stop"}):
        raise whole.error("two steps such as 3-12, and no start= or stop= beside them")
    start, stop = edges
    window = Window(_step(start), _step(stop))
    if start and stop and not window.opens:
        raise stop.error(f"a step behind {start.text.strip()}, where it starts")
    return window


def blocks_of(named: Mapping[str, Piece]) -> dict[str, float]:
    """Return the factor of every block; none where the tag names no blocks."""
    piece, x = named.get("lbw"), named.get("x")
    if piece is None:
        return {}
    if piece.text.strip() in PRESETS:
        return factors_of(PRESETS[piece.text.strip()])
    values = piece.split(",")
    if len(values) not in LISTS:
        counts = ", ".join(map(str, LISTS))
        raise piece.error(f"as many values as one of {counts}, or a preset: {', '.join(PRESETS)}")
    return factors_of([_factor(value, x) for value in values])


def _factor(piece: Piece, x: Piece | None) -> float:
    """Read a NUMBER, or X with what is added to it."""
    match = re.fullmatch(r"X([+-].*)?", piece.text.strip())
    if match is None:
        return strength_of(piece, "a number, X, X+NUMBER or X-NUMBER")
    if x is None:
        raise piece.error("x= beside X")
    added = strength_of(Piece(match[1], piece.column), "X+NUMBER or X-NUMBER") if match[1] else 0.0
    return strength_of(x, "a number for X") + added


def elements_of(piece: Piece | None) -> tuple[Element, ...]:
    """Return the presets that `lbwe=` names."""
    names = piece.split(",") if piece is not None else []
    for name in names:
        if name.text.strip() not in ELEMENTS:
            raise name.error(f"one of {', '.join(ELEMENTS)}")
    return tuple(ELEMENTS[name.text.strip()] for name in names)


def _step(piece: Piece | None) -> float | None:
    if piece is None:
        return None
    step = number_of(piece, "a step, counted from 0")
    if step < 0:
        raise piece.error("a step, counted from 0")
    return step


def ranks_of(piece: Piece | None) -> int | None:
    """Return how many ranks act, `None` for all."""
    if piece is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", piece.text.strip()) or int(piece.text) == 0:
        raise piece.error("how many ranks act, a whole number from 1")
    return int(piece.text)
