"""The errors of this library: each message says what was asked, what was found, what is accepted and the nearest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

NAMED = 40
"""Of how many accepted words a sentence tells; a folder of networks holds thousands."""


class LoraError(Exception):
    """The base of every error that a person is meant to read; its text is one or more plain sentences."""


class FileFormatError(LoraError):
    """A file is not what its name says, is damaged, or claims what it does not hold."""


class UnmatchedError(LoraError):
    """A network has no place in the base it was asked to change."""


class UsageError(LoraError):
    """A command, a configuration or a prompt asks for something that is not accepted."""


class NoSpaceError(LoraError):
    """A disk has no room for what was to be written; what was there before is unharmed."""


class ConfigError(UsageError):
    """A configuration has one or more problems; `problems` lists all of them as (field, sentence)."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{field}: {sentence}" for field, sentence in self.problems))


def did_you_mean(asked: str, accepted: Iterable[str]) -> str:
    """Return a sentence that names the nearest accepted word, or the first `NAMED` of them when none is near."""
    known = sorted(accepted)
    folded = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(asked.casefold(), folded, n=1)
    if near:
        return f"Did you mean {folded[near[0]]!r}?"
    more = f" and {len(known) - NAMED} others" if len(known) > NAMED else ""
    return f"Accepted: {', '.join(known[:NAMED])}{more}."
