"""The prompt text of a schedule: `<lora:NAME:A>` tags whose A is a number or keyframes.

    tag       <lora:NAME> | <lora:NAME:A> | <lora:NAME:A:B>, then any of :te=A :unet=A :neg=A (the UNet for the negative prompt)
              :start=STEP :stop=STEP, and for the hires pass :hr=A (both components) :hrte=A :hrunet=A
    A         NUMBER, or keyframes separated by `,` `;` or `~`
    keyframe  NUMBER@POSITION, then |EASING if not linear
    POSITION  NUMBER, NUMBER% (of the pass), NUMBERst (0-based step) or sNUMBER (sigma); without a unit they are fractions,
              unless one is above 1: then all are steps

A drives the text encoders and, unless B or `unet=` says otherwise, the UNet; a named part wins over a positional one, as in the stock
WebUI. The grammar is closed: nothing in a prompt is ever executed as code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lib_lora.errors import UsageError
from lib_lora.schedule.curve import EASINGS, Curve, Easing, Keyframe, NetworkUse, Unit, Window

_OPENING = "<lora:"
_TAG = re.compile(r"<lora:([^<>]*)>")
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_POSITION = re.compile(rf"(s?)\s*({_NUMBER})\s*(%|st|)")
_NAMED = ("te", "unet", "neg", "hr", "hrte", "hrunet", "start", "stop")
_CURVE = "a number or keyframes such as 0@0,1@0.5"
LARGEST_STRENGTH = 1000.0  # sums and differences of such strengths are finite


@dataclass(frozen=True, slots=True)
class TagError:
    """A tag that was left out: the tag, the column (from 1) where it went wrong and what was expected there."""

    tag: str
    column: int
    expected: str

    def __str__(self) -> str:
        """Return the sentence for the person."""
        return f"{self.tag} is left out: column {self.column}: expected {self.expected}."


@dataclass(frozen=True, slots=True)
class Parsed:
    """A prompt without its tags, what the tags ask for in the order written, and the tags that were left out."""

    text: str
    uses: tuple[NetworkUse, ...]
    errors: tuple[TagError, ...]


def parse_prompt(prompt: str) -> Parsed:
    """Lift the tags out of a prompt; a bad tag is reported and left out, it never raises.

    What follows an opening without its `>` is no tag: it is reported and stays in the text.
    """
    uses, errors = [], []
    brackets = list(_brackets(prompt))
    for match in _TAG.finditer(prompt):
        tag = match.group()
        try:
            if any(opened < match.start() < closed for opened, closed in brackets):
                raise _SyntaxError(match.start() + 1, "a tag outside of square brackets")
            uses.append(_use(_Piece(match.group(1), match.start(1) + 1), tag))
        except _SyntaxError as error:
            errors.append(TagError(tag, error.column, error.expected))
    errors.extend(_unclosed(prompt))
    return Parsed(_TAG.sub("", prompt), tuple(uses), tuple(errors))


def parse_curve(text: str) -> Curve:
    """Read a number or keyframes such as "0@0,1@0.5,0@1"; raises UsageError with the column in its message."""
    return _curve(_Piece(text, 1))


def format_curve(curve: Curve) -> str:
    """Write a curve as the text that `parse_curve` reads back to the same curve."""
    if curve == Curve.constant(curve.keyframes[0].strength):
        return _format_number(curve.keyframes[0].strength)
    return ",".join(_format_keyframe(frame) for frame in curve.keyframes)


class _SyntaxError(UsageError):
    """What was expected at a column, counted from 1."""

    def __init__(self, column: int, expected: str) -> None:
        self.column, self.expected = column, expected
        super().__init__(f"Column {column}: expected {expected}.")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the text and the column of its first character."""

    text: str
    column: int

    def split(self, separators: str) -> list[_Piece]:
        pieces, start = [], 0
        for match in re.finditer(f"[{separators}]", self.text):
            pieces.append(_Piece(self.text[start : match.start()], self.column + start))
            start = match.end()
        return [*pieces, _Piece(self.text[start:], self.column + start)]

    def error(self, expected: str) -> _SyntaxError:
        return _SyntaxError(self.column, expected)


@dataclass(frozen=True, slots=True)
class _Point:
    """A keyframe as written: `None` is what the text leaves open."""

    strength: float
    position: float | None
    unit: Unit | None
    easing: Easing
    piece: _Piece


def _use(inside: _Piece, source: str) -> NetworkUse:
    """Read what stands between `<lora:` and `>`."""
    name, *parts = inside.split(":")
    if not name.text.strip():
        raise name.error("the name of a LoRA")
    positional = [part for part in parts if "=" not in part.text]
    if len(positional) > 2:
        raise positional[2].error(f"no third strength, but one of {_accepted_parts()}")
    named = _named_parts(part for part in parts if "=" in part.text)
    curves = [_curve(part) for part in positional]
    te = _curve(named["te"]) if "te" in named else next(iter(curves), Curve.constant(1.0))
    unet = _curve(named["unet"]) if "unet" in named else next(iter(curves[1:]), te)
    negative = {"neg": _curve(named["neg"])} if "neg" in named else {}
    window = Window(*(_step(named.get(edge)) for edge in ("start", "stop")))
    return NetworkUse(
        name=name.text.strip(),
        curves={"unet": unet, "te": te, **negative},
        hires=_hires(named),
        window=window,
        source=source,
    )


def _hires(named: dict[str, _Piece]) -> dict[str, Curve]:
    """Return the curves that the hires pass has for itself."""
    return {
        group: _curve(named[word])
        for group in ("unet", "te")
        for word in ("hr", f"hr{group}")
        if word in named
    }


def _named_parts(parts: Iterator[_Piece]) -> dict[str, _Piece]:
    named: dict[str, _Piece] = {}
    for part in parts:
        key, value, *more = part.split("=")
        word = key.text.strip()
        if word not in _NAMED:
            raise key.error(f"one of {_accepted_parts()}")
        if word in named or more:
            raise part.error(f"{word}= once")
        named[word] = value
    return named


def _accepted_parts() -> str:
    return ", ".join(f"{word}=" for word in _NAMED)


def _step(piece: _Piece | None) -> float | None:
    if piece is None:
        return None
    step = _number(piece, "a step, counted from 0")
    if step < 0:
        raise piece.error("a step, counted from 0")
    return step


def _curve(piece: _Piece) -> Curve:
    points = [_point(part) for part in piece.split(",;~")]
    if len(points) == 1 and points[0].position is None:
        return Curve.constant(points[0].strength)
    unit = _common_unit(points)
    frames = [
        Keyframe(_position(point, unit), point.strength, unit, point.easing) for point in points
    ]
    return Curve(tuple(sorted(frames, key=lambda frame: frame.place)))


def _point(piece: _Piece) -> _Point:
    """Read "STRENGTH", "STRENGTH@POSITION" or "STRENGTH@POSITION|EASING"."""
    body, *easings = piece.split("|")
    strength, *positions = body.split("@")
    value = _strength(strength)
    if len(positions) > 1 or len(easings) > 1 or (easings and not positions):
        raise piece.error("STRENGTH@POSITION, with at most one |EASING behind it")
    easing = _easing(easings[0]) if easings else "linear"
    if not positions:
        return _Point(value, None, None, easing, piece)
    match = _POSITION.fullmatch(positions[0].text.strip())
    if match is None or (match[1] and match[3]):
        raise positions[0].error("a position such as 0.5, 50%, 10st or s2.5")
    position = _number(_Piece(match[2], positions[0].column), "a finite position")
    unit: Unit | None = "sigma" if match[1] else {"%": "fraction", "st": "step", "": None}[match[3]]
    position = position / 100 if match[3] == "%" else position
    return _Point(value, position, unit, easing, positions[0])


def _strength(piece: _Piece) -> float:
    value = _number(piece, _CURVE)
    if abs(value) > LARGEST_STRENGTH:
        raise piece.error(f"a strength from {-LARGEST_STRENGTH:g} to {LARGEST_STRENGTH:g}")
    return value


def _easing(piece: _Piece) -> Easing:
    for easing in EASINGS:
        if piece.text.strip() == easing:
            return easing
    raise piece.error(f"an easing: {', '.join(EASINGS)}")


def _common_unit(points: list[_Point]) -> Unit:
    """Return the unit that the marked positions name, else steps when a position is above 1, else fractions."""
    marked = [point.unit for point in points if point.unit]
    for point in points:
        if point.position is None:
            raise point.piece.error("STRENGTH@POSITION for every keyframe")
        if marked and (point.unit or marked[0]) != marked[0]:
            raise point.piece.error("the same unit for all positions of a curve")
        if "sigma" in marked and point.unit is None:
            raise point.piece.error("a sigma such as s2.5, as for the other keyframes")
    if marked:
        return marked[0]
    return "step" if any(point.position > 1 for point in points if point.position) else "fraction"


def _position(point: _Point, unit: Unit) -> float:
    """Return the position of a point, which must lie where positions of its unit can."""
    position = point.position or 0.0
    if position < 0 or (unit == "sigma" and position == 0):
        raise point.piece.error("a position of at least 0 (a sigma above 0)")
    if unit == "fraction" and position > 1:
        raise point.piece.error("a fraction of at most 1 (100%)")
    return position


def _number(piece: _Piece, expected: str) -> float:
    text = piece.text.strip()
    if not re.fullmatch(_NUMBER, text) or not math.isfinite(float(text)):
        raise piece.error(expected)
    return float(text)


def _brackets(prompt: str) -> Iterator[tuple[int, int]]:
    """Yield where each pair of square brackets opens and closes; escaped ones and those in tags do not count."""
    bare = _TAG.sub(lambda match: "." * len(match.group()), prompt)
    opened: list[int] = []
    for mark in re.finditer(r"\\.|[\[\]]", bare, re.DOTALL):
        if mark.group() == "[":
            opened.append(mark.start())
        elif mark.group() == "]" and opened:
            yield opened.pop(), mark.start()


def _unclosed(prompt: str) -> Iterator[TagError]:
    """Yield an error for every opening that no `>` follows before the next `<`."""
    closed = {match.start() for match in _TAG.finditer(prompt)}
    for match in re.finditer(_OPENING, prompt):
        if match.start() not in closed:
            rest = prompt[match.start() :]
            text = rest[: rest.find("<", 1)] if "<" in rest[1:] else rest
            yield TagError(text, match.start() + len(text) + 1, "'>' at the end of the tag")


def _format_keyframe(frame: Keyframe) -> str:
    before, after = {"fraction": ("", ""), "step": ("", "st"), "sigma": ("s", "")}[frame.unit]
    easing = "" if frame.easing == "linear" else f"|{frame.easing}"
    return (
        f"{_format_number(frame.strength)}@{before}{_format_number(frame.position)}{after}{easing}"
    )


def _format_number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
