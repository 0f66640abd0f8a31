"""The prompt text of a schedule: `<lora:NAME:A>` tags whose A is a number or keyframes.

    tag       <lora:NAME> | <lora:NAME:A> | <lora:NAME:A:B> | <lora:NAME:A:B:RANKS>, then any of :te=A :unet=A :neg=A (the UNet for
              the negative prompt) :start=STEP :stop=STEP (or :step=STEP-STEP) :dyn=RANKS :lbw=BLOCKS :lbwe=ELEMENTS :x=NUMBER, and for
              the hires pass :hr=A (both components) :hrte=A :hrunet=A; the WebUI's other name of it, <lyco:...>, means the same
    BLOCKS    a preset, or 12, 17, 20 or 26 values separated by `,`: NUMBER, or X, X+NUMBER, X-NUMBER with x=
    ELEMENTS  presets separated by `,`
    A         NUMBER, or keyframes separated by `,` `;` or `~`
    keyframe  NUMBER@POSITION, then |EASING if not linear
    POSITION  NUMBER, NUMBER% (of the pass), NUMBERst (0-based step) or sNUMBER (sigma); without a unit they are fractions,
              unless one is above 1: then all are steps

A tag inside of prompt editing (`brackets`) acts while its part of it is there, on both components.

A drives the text encoders and, unless B or `unet=` says otherwise, the UNet; a named part wins over a positional one, as in the stock
WebUI. The grammar is closed: nothing in a prompt is ever executed as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lib_lora.schedule.brackets import brackets_of, emptied, without
from lib_lora.schedule.curve import EASINGS, Curve, Easing, Keyframe, NetworkUse, Unit
from lib_lora.schedule.parts import NAMES, blocks_of, elements_of, ranks_of, window_of
from lib_lora.schedule.pieces import NUMBER, Piece, TagSyntaxError, number_of, strength_of

_OPENING = "<(?:lora|lyco):"
TAG = re.compile(rf"{_OPENING}([^<>]*)>")
_POSITION = re.compile(rf"(s?)\s*({NUMBER})\s*(%|st|)")
_CURVES = ("te", "unet", "neg", "hr", "hrte", "hrunet")
_CURVE = "a number or keyframes such as 0@0,1@0.5"
_POSITIONS = 3


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
    tags = list(TAG.finditer(prompt))
    brackets = brackets_of(prompt)
    for match in tags:
        tag = match.group()
        around = [bracket for bracket in brackets if bracket.holds(match.start())]
        gates = [gate for bracket in around if (gate := bracket.gate(match.start()))]
        try:
            if any(bracket.bars for bracket in around):
                raise TagSyntaxError(match.start() + 1, "a tag outside of [alternating|words]")
            use = _use(Piece(match.group(1), match.start(1) + 1), tag)
            uses.append(replace(use, gates=tuple(gates)))
        except TagSyntaxError as error:
            errors.append(TagError(tag, error.column, error.expected))
    errors.extend(_unclosed(prompt))
    gone = emptied(prompt, brackets, [match.span() for match in tags])
    return Parsed(without(prompt, gone), tuple(uses), tuple(errors))


def parse_curve(text: str) -> Curve:
    """Read a number or keyframes such as "0@0,1@0.5,0@1"; raises UsageError with the column in its message."""
    return _curve(Piece(text, 1))


def format_curve(curve: Curve) -> str:
    """Write a curve as the text that `parse_curve` reads back to the same curve."""
    if curve == Curve.constant(curve.keyframes[0].strength):
        return _formatnumber_of(curve.keyframes[0].strength)
    return ",".join(_format_keyframe(frame) for frame in curve.keyframes)


@dataclass(frozen=True, slots=True)
class _Point:
    """A keyframe as written: `None` is what the text leaves open."""

    strength: float
    position: float | None
    unit: Unit | None
    easing: Easing
    piece: Piece


def _use(inside: Piece, source: str) -> NetworkUse:
    """Read what stands between `<lora:` and `>`."""
    name, *parts = inside.split(":")
    if not name.text.strip():
        raise name.error("the name of a LoRA")
    positional = [part for part in parts if "=" not in part.text]
    if len(positional) > _POSITIONS:
        raise positional[_POSITIONS].error(f"one of {_accepted_parts()}")
    named = _named_parts(part for part in parts if "=" in part.text)
    curves = [_curve(part) for part in positional[:2]]
    te = _curve(named["te"]) if "te" in named else next(iter(curves), Curve.constant(1.0))
    unet = _curve(named["unet"]) if "unet" in named else next(iter(curves[1:]), te)
    negative = {"neg": _curve(named["neg"])} if "neg" in named else {}
    return NetworkUse(
        name=name.text.strip(),
        curves={"unet": unet, "te": te, **negative},
        hires=_hires(named),
        window=window_of(named),
        blocks=blocks_of(named),
        elements=elements_of(named.get("lbwe")),
        ranks=ranks_of(named.get("dyn", next(iter(positional[2:]), None))),
        source=source,
    )


def _hires(named: dict[str, Piece]) -> dict[str, Curve]:
    """Return the curves that the hires pass has for itself."""
    return {
        group: _curve(named[word])
        for group in ("unet", "te")
        for word in ("hr", f"hr{group}")
        if word in named
    }


def _named_parts(parts: Iterator[Piece]) -> dict[str, Piece]:
    named: dict[str, Piece] = {}
    for part in parts:
        key, value, *more = part.split("=")
        word = key.text.strip()
        if word not in (*_CURVES, *NAMES):
            raise key.error(f"one of {_accepted_parts()}")
        if word in named or more:
            raise part.error(f"{word}= once")
        named[word] = value
    return named


def _accepted_parts() -> str:
    return ", ".join(f"{word}=" for word in (*_CURVES, *NAMES))


def _curve(piece: Piece) -> Curve:
    points = [_point(part) for part in piece.split(",;~")]
    if len(points) == 1 and points[0].position is None:
        return Curve.constant(points[0].strength)
    unit = _common_unit(points)
    frames = [
        Keyframe(_position(point, unit), point.strength, unit, point.easing) for point in points
    ]
    return Curve(tuple(sorted(frames, key=lambda frame: frame.place)))


def _point(piece: Piece) -> _Point:
    """Read "STRENGTH", "STRENGTH@POSITION" or "STRENGTH@POSITION|EASING"."""
    body, *easings = piece.split("|")
    strength, *positions = body.split("@")
    value = strength_of(strength, _CURVE)
    if len(positions) > 1 or len(easings) > 1 or (easings and not positions):
        raise piece.error("STRENGTH@POSITION, with at most one |EASING behind it")
    easing = _easing(easings[0]) if easings else "linear"
    if not positions:
        return _Point(value, None, None, easing, piece)
    match = _POSITION.fullmatch(positions[0].text.strip())
    if match is None or (match[1] and match[3]):
        raise positions[0].error("a position such as 0.5, 50%, 10st or s2.5")
    position = number_of(Piece(match[2], positions[0].column), "a finite position")
    unit: Unit | None = "sigma" if match[1] else {"%": "fraction", "st": "step", "": None}[match[3]]
    position = position / 100 if match[3] == "%" else position
    return _Point(value, position, unit, easing, positions[0])


def _easing(piece: Piece) -> Easing:
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


def _unclosed(prompt: str) -> Iterator[TagError]:
    """Yield an error for every opening that no `>` follows before the next `<`."""
    closed = {match.start() for match in TAG.finditer(prompt)}
    for match in re.finditer(_OPENING, prompt):
        if match.start() not in closed:
            rest = prompt[match.start() :]
            text = rest[: rest.find("<", 1)] if "<" in rest[1:] else rest
            yield TagError(text, match.start() + len(text) + 1, "'>' at the end of the tag")


def _format_keyframe(frame: Keyframe) -> str:
    before, after = {"fraction": ("", ""), "step": ("", "st"), "sigma": ("s", "")}[frame.unit]
    easing = "" if frame.easing == "linear" else f"|{frame.easing}"
    return f"{_formatnumber_of(frame.strength)}@{before}{_formatnumber_of(frame.position)}{after}{easing}"


def _formatnumber_of(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
