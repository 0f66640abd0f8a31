"""Prompt editing around tags: `[a:b:10]`, `[a::10]` and `[b:10]`, as the WebUI writes it.

What stands before the change acts while step < 10, what stands behind it from step 10 on; a number with a point is a fraction of the
steps of the pass. Brackets may hold each other. Those with one part, or with more than three, change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lib_lora.schedule.curve import Bound, Gate

Span = tuple[int, int]

_ANY_TAG = re.compile(r"<\w+:[^<>]*>")
_MARK = re.compile(r"\\.|[\[\]():|]", re.DOTALL)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)\s*")


@dataclass(slots=True)
class Bracket:
    """A pair of square brackets in a text: where it opens and closes, and its own colons and bars."""

    opened: int
    closed: int = -1
    colons: list[int] = field(default_factory=list)
    bars: list[int] = field(default_factory=list)
    bound: Bound | None = None

    def holds(self, position: int) -> bool:
        """Tell whether a position is inside."""
        return self.opened < position < self.closed

    @property
    def parts(self) -> Span:
        """Return where the text is that it edits."""
        return self.opened + 1, self.colons[-1] if self.bound else self.closed

    def gate(self, position: int) -> Gate | None:
        """Return when what stands at a position inside acts, `None` for always."""
        if self.bound is None:
            return None
        before = len(self.colons) > 1 and position < self.colons[0]
        return Gate(stop=self.bound) if before else Gate(start=self.bound)


def brackets_of(text: str) -> list[Bracket]:
    """Return every pair of square brackets, inner ones first; escaped ones, and signs inside of tags, do not count."""
    found: list[Bracket] = []
    opened: list[Bracket | None] = []  # `None` is a round one
    bare = _ANY_TAG.sub(lambda tag: "." * len(tag.group()), text)
    for mark in _MARK.finditer(bare):
        position, sign = mark.start(), mark.group()
        innermost = opened[-1] if opened else None
        if sign in "[(":
            opened.append(Bracket(position) if sign == "[" else None)
        elif sign == ")" and opened and innermost is None:
            opened.pop()
        elif sign == "]":
            found.extend(_closed(opened, text, position))
        elif innermost is not None and sign in ":|":
            (innermost.colons if sign == ":" else innermost.bars).append(position)
    return found


def emptied(text: str, brackets: Sequence[Bracket], tags: Sequence[Span]) -> list[Span]:
    """Return what of a text goes with its tags: these, and every pair of brackets that held nothing else."""
    gone = list(tags)
    for bracket in brackets:
        start, end = bracket.parts
        own = {*bracket.colons, *bracket.bars}
        inside = [span for span in gone if bracket.holds(span[0])]
        covered = {position for span in inside for position in range(*span)}
        left = (text[at] for at in range(start, end) if at not in covered and at not in own)
        if inside and not "".join(left).strip():
            gone.append((bracket.opened, bracket.closed + 1))
    return gone


def without(text: str, spans: Sequence[Span]) -> str:
    """Return a text without these parts, which may hold each other."""
    kept, end = [], 0
    for start, stop in sorted(spans):
        kept.append(text[end : max(start, end)])
        end = max(end, stop)
    return "".join([*kept, text[end:]])


def _closed(opened: list[Bracket | None], text: str, position: int) -> Iterator[Bracket]:
    """Yield the bracket that closes here, if one is open; round ones inside of it that never closed are text."""
    if not any(opened):
        return
    while (bracket := opened.pop()) is None:
        pass
    bracket.closed = position
    if 0 < len(bracket.colons) < 3 and not bracket.bars:
        number = text[bracket.colons[-1] + 1 : position]
        if _NUMBER.fullmatch(number):
            bracket.bound = Bound(float(number), fraction="." in number)
    yield bracket
