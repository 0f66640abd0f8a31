"""Parts of a prompt's text with the column where they stand, and reading numbers out of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lib_lora.errors import UsageError

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
LARGEST_STRENGTH = 1000.0  # sums and differences of such strengths are finite


class TagSyntaxError(UsageError):
    """What was expected at a column, counted from 1."""

    def __init__(self, column: int, expected: str) -> None:
        self.column, self.expected = column, expected
        super().__init__(f"Column {column}: expected {expected}.")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the text and the column of its first character."""

    text: str
    column: int

    def split(self, separators: str) -> list[Piece]:
        """Return what stands between these characters."""
        pieces, start = [], 0
        for match in re.finditer(f"[{separators}]", self.text):
            pieces.append(Piece(self.text[start : match.start()], self.column + start))
            start = match.end()
        return [*pieces, Piece(self.text[start:], self.column + start)]

    def error(self, expected: str) -> TagSyntaxError:
        """Return the error of a piece that is not what was expected."""
        return TagSyntaxError(self.column, expected)


def number_of(piece: Piece, expected: str) -> float:
    """Read a finite number; raises TagSyntaxError with what was expected."""
    text = piece.text.strip()
    if not re.fullmatch(NUMBER, text) or not math.isfinite(float(text)):
        raise piece.error(expected)
    return float(text)


def strength_of(piece: Piece, expected: str) -> float:
    """Read a strength of at most `LARGEST_STRENGTH`; raises TagSyntaxError with what was expected."""
    value = number_of(piece, expected)
    if abs(value) > LARGEST_STRENGTH:
        raise piece.error(f"a strength from {-LARGEST_STRENGTH:g} to {LARGEST_STRENGTH:g}")
    return value
