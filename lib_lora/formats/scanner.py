"""Going through the JSON text of a safetensors header value by value, strictly and within bounds.

A hostile text is refused at its first fault and is never held as a tree of objects: no nesting and no number of values costs time
or memory beyond the bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache

MAX_NAME = 1000  # characters
MAX_DESCRIPTION = 1000  # characters of what a header says of one tensor

# The pieces of a JSON object: nothing in it, the first name with its colon, a further one, the end.
_SPACE = r"[ \t\n\r]{0,5000}"  # some writers fill a header up to a page of 4096 bytes
_NAME = rf'{_SPACE}"([^"\\\x00-\x1f]{{0,1000}}(?:\\.[^"\\\x00-\x1f]{{0,1000}}){{0,1000}})"{_SPACE}:{_SPACE}'
_EMPTY = re.compile(rf"{_SPACE}\{{{_SPACE}\}}{_SPACE}")
_FIRST = re.compile(rf"{_SPACE}\{{{_NAME}")
_FURTHER = re.compile(rf"{_SPACE},{_NAME}")
_END = re.compile(rf"{_SPACE}\}}{_SPACE}")
# What is said of a tensor as the safetensors library writes it; json reads any other spelling.
_SIZE = "(?:0|[1-9][0-9]{0,15})"
_USUAL = re.compile(
    r'\{"dtype":"([A-Z0-9_]{1,20})",'
    rf'"shape":\[((?:{_SIZE},){{0,7}}{_SIZE})?\],'
    rf'"data_offsets":\[({_SIZE}),({_SIZE})\]\}}'
)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


Description = tuple[str, tuple[int, ...], int, int]
"""What a header says of a tensor: dtype, shape, and the offsets of its data."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a field is there twice")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


class Scanner:
    """A place in a text, which moves on; every step raises ValueError for what is no JSON, or RecursionError."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def members(self, most: int) -> Iterator[str]:
        """Go through an object of at most `most` names: yield each when its value comes next, which the caller reads."""
        names: set[str] = set()
        found = None if self._match(_EMPTY) else self._expect(_FIRST, "a name")
        while found:
            name = found[1]
            if "\\" in name:
                name = _DECODER.decode(f'"{name}"')
            if len(names) == most or len(name) > MAX_NAME:
                raise ValueError(f"more than {most:,} names, or one beyond {MAX_NAME} letters")
            if name in names:
                raise ValueError(f"{name!r} is there twice")
            names.add(_whole(name))
            yield name
            found = self._match(_FURTHER)
            if not found:
                self._expect(_END, "a name or the end")

    def string(self) -> str:
        """Read a value that begins with a quotation mark."""
        value, self.at = _DECODER.raw_decode(self.text, self.at)
        return _whole(value)

    def description(self) -> object:
        """Read what the header says of one tensor, whatever it is and however it is spelled."""
        value, length = _DECODER.raw_decode(self.text[self.at : self.at + MAX_DESCRIPTION])
        self.at += length
        return value

    def usual_description(self) -> Description | None:
        """Read what the header says of one tensor where it is spelled as usual, else nothing; several times as fast as json."""
        usual = self._match(_USUAL)
        if usual is None:
            return None
        dtype, shape, first, last = usual.groups()
        return dtype, _sizes(shape or ""), int(first), int(last)

    def next_is(self, character: str) -> bool:
        """Tell whether the value that comes next begins with a character, or the text has ended for ""."""
        return self.text[self.at : self.at + 1] == character

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = self._match(pattern)
        if found is None:
            raise ValueError(f"{what} is missing at character {self.at:,}")
        return found


@lru_cache(maxsize=256)
def _sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of a list without its brackets; a file has few shapes, many times each."""
    return tuple(int(size) for size in text.split(",")) if text else ()


def _whole(text: str) -> str:
    """Return a text; raises ValueError when it could not be written as UTF-8."""
    if not text.isascii() and _HALF_CHARACTER.search(text):
        raise ValueError("a text has half a character")
    return text
