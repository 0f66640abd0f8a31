"""Strength over time: keyframes, their units, and the moment at which they are asked.

A curve is a pure function of a `Moment`. Positions are fractions of the pass (first evaluation 0, last 1), 0-based steps, or
noise levels (sigma); between two keyframes the later one's easing shapes the way there; outside them the curve is flat.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from lib_lora.errors import UsageError
from lib_lora.schedule.blocks import Element

Unit = Literal["fraction", "step", "sigma"]
Easing = Literal["linear", "step", "smooth", "ease-in", "ease-out"]
PassName = Literal["base", "hires", "refiner"]

# How much of the way to a keyframe's strength is done at a share of the way to its position.
_EASINGS: dict[Easing, Callable[[float], float]] = {
    "linear": lambda share: share,
    "step": lambda share: 0.0,
    "smooth": lambda share: share * share * (3.0 - 2.0 * share),
    "ease-in": lambda share: share * share,
    "ease-out": lambda share: share * (2.0 - share),
}
EASINGS: tuple[Easing, ...] = tuple(_EASINGS)


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a pass stands at one evaluation of the UNet.

    progress: 0 at the first evaluation, 1 at the last, 0 when there is only one; step: progress * (steps - 1), fractional
    between the steps of second-order samplers; sigma: the noise level; steps: how many steps the pass has.
    """

    progress: float
    step: float
    sigma: float
    steps: int


@dataclass(frozen=True, slots=True)
class Keyframe:
    """One point of a curve: the strength at a position, and how the curve arrives there."""

    position: float
    strength: float
    unit: Unit = "fraction"
    easing: Easing = "linear"

    @property
    def place(self) -> float:
        """Return the position on an axis that grows as the pass goes on; noise levels run on their logarithm."""
        return _noise_place(self.position) if self.unit == "sigma" else self.position


@dataclass(frozen=True, slots=True)
class Curve:
    """A strength over time; keyframes are in the order in which a pass meets them. One keyframe is a constant.

    Fractions lie in 0..1, steps from 0 up, sigmas above 0. Raises UsageError where that, one unit for all, or the order is broken.
    """

    keyframes: tuple[Keyframe, ...]

    def __post_init__(self) -> None:
        if problem := _problem(self.keyframes):
            raise UsageError(problem)

    @classmethod
    def constant(cls, strength: float) -> Curve:
        """Return the curve that never changes."""
        return cls((Keyframe(0.0, strength),))

    @property
    def is_constant(self) -> bool:
        """Tell whether every moment gives the same strength."""
        return len({frame.strength for frame in self.keyframes}) == 1

    def at(self, moment: Moment) -> float:
        """Return the strength at a moment; of two keyframes at one position the later one holds from there on."""
        frames = self.keyframes
        here = _place_of(moment, frames[0].unit)
        met = bisect_right([frame.place for frame in frames], here)
        if met in (0, len(frames)):
            return frames[max(met - 1, 0)].strength
        earlier, later = frames[met - 1], frames[met]
        share = (here - earlier.place) / (later.place - earlier.place)
        done = _EASINGS[later.easing](share)
        return earlier.strength + (later.strength - earlier.strength) * done


@dataclass(frozen=True, slots=True)
class Window:
    """The steps in which a network acts on the UNet: start <= step < stop; `None` is open."""

    start: float | None = None
    stop: float | None = None

    @property
    def opens(self) -> bool:
        """Tell whether any step lies in the window."""
        return self.start is None or self.stop is None or self.start < self.stop

    def contains(self, moment: Moment) -> bool:
        """Tell whether a moment's step lies in the window."""
        after = self.start is None or moment.step >= self.start
        return after and (self.stop is None or moment.step < self.stop)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where prompt editing changes a prompt: after so many steps of a pass, or after a fraction of them, rounded down."""

    value: float
    fraction: bool = False

    def step(self, steps: int) -> float:
        """Return the first step behind it in a pass of so many."""
        return float(math.floor(self.value * steps)) if self.fraction else self.value


@dataclass(frozen=True, slots=True)
class Gate:
    """When a part of a prompt that editing puts in or takes out is there: start <= step < stop; `None` is open."""

    start: Bound | None = None
    stop: Bound | None = None

    def contains(self, moment: Moment) -> bool:
        """Tell whether the part is there at a moment."""
        after = self.start is None or moment.step >= self.start.step(moment.steps)
        return after and (self.stop is None or moment.step < self.stop.step(moment.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """One occurrence of a network in a prompt.

    name: the file's name as written; curves: a curve per component group, "unet" and "te", and "neg" where the UNet has another
    strength for the negative prompt; hires: the curves of the hires pass where they differ; window: gates the UNet; gates: gate
    both; blocks: a factor per block name; elements: other factors for some layers of these; ranks: how many of the network's ranks act, `None` is all; source: the tag as written.
    """

    name: str
    curves: Mapping[str, Curve]
    hires: Mapping[str, Curve] = field(default_factory=dict)
    window: Window = Window()
    gates: tuple[Gate, ...] = ()
    blocks: Mapping[str, float] = field(default_factory=dict)
    elements: tuple[Element, ...] = ()
    ranks: int | None = None
    source: str = ""

    def strength(self, group: str, moment: Moment, pass_name: PassName = "base") -> float:
        """Return the strength of a group ("unet", "neg" or "te") at a moment of a pass; the window gates the UNet only."""
        if not all(gate.contains(moment) for gate in self.gates):
            return 0.0
        if group != "te" and not self.window.contains(moment):
            return 0.0
        groups = ("neg", "unet") if group == "neg" else (group,)
        passes = (self.hires, self.curves) if pass_name == "hires" else (self.curves,)
        # What a pass says of the UNet goes before what the others say of the negative prompt: hires off is off.
        written = (curves[name] for curves in passes for name in groups if name in curves)
        return next(written).at(moment)


def strengths_at(uses: Iterable[NetworkUse], moment: Moment) -> dict[str, float]:
    """Return the strength of each network on the UNet by name, summed where a name occurs more than once."""
    strengths: dict[str, float] = {}
    for use in uses:
        strengths[use.name] = strengths.get(use.name, 0.0) + use.strength("unet", moment)
    return strengths


def _noise_place(sigma: float) -> float:
    return -math.log(sigma) if sigma > 0 else math.inf


def _place_of(moment: Moment, unit: Unit) -> float:
    if unit == "sigma":
        return _noise_place(moment.sigma)
    return moment.step if unit == "step" else moment.progress


def _problem(frames: tuple[Keyframe, ...]) -> str | None:
    """Say what is wrong with the keyframes of a curve, `None` when nothing is."""
    if len({frame.unit for frame in frames}) != 1:
        return "A curve needs keyframes, all in one unit: fractions, steps or sigmas."
    for frame in frames:
        low, high = (0.0, 1.0) if frame.unit == "fraction" else (0.0, math.inf)
        inside = math.isfinite(frame.position) and low <= frame.position <= high
        if not inside or (frame.unit == "sigma" and frame.position == 0):
            return f"{frame.position} is no {frame.unit}: accepted are {_RANGES[frame.unit]}."
        if not math.isfinite(frame.strength):
            return f"{frame.strength} is no strength: a finite number is accepted."
    if any(after.place < before.place for before, after in pairwise(frames)):
        return "The keyframes of a curve must be in the order in which a pass meets them."
    return None


_RANGES: dict[Unit, str] = {
    "fraction": "fractions from 0 to 1",
    "step": "steps from 0 up",
    "sigma": "noise levels above 0",
}
