"""The prompt text of a schedule: `<lora:NAME:A>` tags whose A is a number or keyframes.

The grammar is closed: nothing in a prompt is ever executed as code.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib_lora.schedule.curve import Curve, NetworkUse


@dataclass(frozen=True, slots=True)
class TagError:
    """A tag that was left out: the tag, the column where it went wrong and what was expected there."""

    tag: str
    column: int
    expected: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A prompt without its tags, what the tags ask for in the order written, and the tags that were left out."""

    text: str
    uses: tuple[NetworkUse, ...]
    errors: tuple[TagError, ...]


def parse_prompt(prompt: str) -> Parsed:
    """Lift the tags out of a prompt; a bad tag is reported and left out, it never raises."""
    raise NotImplementedError


def parse_curve(text: str) -> Curve:
    """Read a number or keyframes such as "0@0,1@0.5,0@1"; raises UsageError with the column in its message."""
    raise NotImplementedError


def format_curve(curve: Curve) -> str:
    """Write a curve as the text that `parse_curve` reads back to the same curve."""
    raise NotImplementedError
