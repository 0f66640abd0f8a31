"""The clock: where a pass stands, told by the noise level and never by a counter.

Counters lie: hosts update them after the evaluation, second-order samplers call the model twice a step and adaptive ones any
number of times. The noise level is what the UNet itself is told.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import neg
from typing import Literal

from lib_lora.schedule.curve import Moment

Scale = Literal["sigma", "timestep"]

# Samplers that compute exp(log(sigma)) in float32 return a level some bits away from the one in the list.
_SAME_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class Clock:
    """The list of noise levels that a pass walks, most noise first, without the final zero that is never evaluated.

    Positions are interpolated in log-sigma for sigma samplers and in the timestep itself for timestep samplers, and clamped:
    first evaluated = 0, last evaluated = 1, a single evaluation = 0.
    sigmas: the noise level at each of `levels`, which are themselves timesteps for a timestep sampler.
    """

    levels: tuple[float, ...]
    scale: Scale = "sigma"
    sigmas: tuple[float, ...] = ()

    @classmethod
    def from_sigmas(cls, sigmas: Sequence[float]) -> Clock:
        """Return the clock of a sigma list, with or without its final zero."""
        levels = tuple(float(sigma) for sigma in sigmas if sigma > 0)
        return cls(levels, "sigma", levels)

    @classmethod
    def from_timesteps(cls, timesteps: Sequence[float], sigmas: Sequence[float]) -> Clock:
        """Return the clock of a descending timestep list; `sigmas` holds the noise level of each timestep."""
        levels = tuple(float(timestep) for timestep in timesteps)
        return cls(levels, "timestep", tuple(float(sigma) for sigma in sigmas))

    def moment(self, level: float) -> Moment:
        """Return the moment at which the UNet is evaluated at this sigma or timestep."""
        step = self._step(level)
        last = len(self.levels) - 1
        progress = step / last if last > 0 else 0.0
        sigma = level if self.scale == "sigma" else self._sigma(step)
        return Moment(progress, step, sigma, len(self.levels))

    def _step(self, level: float) -> float:
        """Return the fractional index of a level in the list."""
        levels = self.levels
        if len(levels) < 2 or level >= levels[0]:
            return 0.0
        if level <= levels[-1]:
            return float(len(levels) - 1)
        later = bisect_left(levels, -level, key=neg)
        above, here, below = (
            self._axis(value) for value in (levels[later - 1], level, levels[later])
        )
        step = later - 1 + (here - above) / (below - above)
        return float(round(step)) if abs(step - round(step)) < _SAME_STEP else step

    def _axis(self, level: float) -> float:
        return math.log(level) if self.scale == "sigma" else level

    def _sigma(self, step: float) -> float:
        """Return the noise level at a fractional step, interpolated in log-sigma."""
        before, after = self.sigmas[math.floor(step)], self.sigmas[math.ceil(step)]
        return before * math.pow(after / before, step - math.floor(step))
