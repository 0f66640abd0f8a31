"""Strength over time: keyframes, their units, and the moment at which they are asked.

A curve is a pure function of a `Moment`. Positions are fractions of the pass (first evaluation 0, last 1), 0-based steps, or
noise levels (sigma); between two keyframes the later one's easing shapes the way there; outside them the curve is flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["fraction", "step", "sigma"]
Easing = Literal["linear", "step", "smooth", "ease-in", "ease-out"]
PassName = Literal["base", "hires", "refiner"]


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


@dataclass(frozen=True, slots=True)
class Curve:
    """A strength over time; keyframes are in the order in which a pass meets them. One keyframe is a constant."""

    keyframes: tuple[Keyframe, ...]

    @classmethod
    def constant(cls, strength: float) -> Curve:
        """Return the curve that never changes."""
        return cls((Keyframe(0.0, strength),))

    @property
    def is_constant(self) -> bool:
        """Tell whether every moment gives the same strength."""
        return len({frame.strength for frame in self.keyframes}) == 1

    def at(self, moment: Moment) -> float:
        """Return the strength at a moment."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Window:
    """The steps in which a network acts on the UNet: start <= step < stop; `None` is open."""

    start: float | None = None
    stop: float | None = None

    def contains(self, moment: Moment) -> bool:
        """Tell whether a moment's step lies in the window."""
        after = self.start is None or moment.step >= self.start
        return after and (self.stop is None or moment.step < self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """One occurrence of a network in a prompt.

    name: the file's name as written; curves: a curve per component group, "unet" and "te"; hires: the curves of the hires pass
    where they differ; window: gates the UNet; blocks: a factor per block name; source: the tag as written.
    """

    name: str
    curves: Mapping[str, Curve]
    hires: Mapping[str, Curve] = field(default_factory=dict)
    window: Window = Window()
    blocks: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def strength(self, group: str, moment: Moment, pass_name: PassName = "base") -> float:
        """Return the strength of a component group ("unet" or "te") at a moment of a pass; the window gates the UNet only."""
        curves = self.hires if pass_name == "hires" and group in self.hires else self.curves
        if group == "unet" and not self.window.contains(moment):
            return 0.0
        return curves[group].at(moment)
