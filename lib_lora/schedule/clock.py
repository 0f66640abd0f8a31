"""The clock: where a pass stands, told by the noise level and never by a counter.

Counters lie: hosts update them after the evaluation, second-order samplers call the model twice a step and adaptive ones any
number of times. The noise level is what the UNet itself is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lib_lora.schedule.curve import Moment

Scale = Literal["sigma", "timestep"]


@dataclass(frozen=True, slots=True)
class Clock:
    """The list of noise levels that a pass walks, most noise first, without the final zero that is never evaluated.

    Positions are interpolated in log-sigma for sigma samplers and in the timestep itself for timestep samplers, and clamped:
    first evaluated = 0, last evaluated = 1, a single evaluation = 0.
    """

    levels: tuple[float, ...]
    scale: Scale = "sigma"

    @classmethod
    def from_sigmas(cls, sigmas: Sequence[float]) -> Clock:
        """Return the clock of a sigma list, with or without its final zero."""
        raise NotImplementedError

    @classmethod
    def from_timesteps(cls, timesteps: Sequence[float]) -> Clock:
        """Return the clock of a descending timestep list."""
        raise NotImplementedError

    def moment(self, level: float) -> Moment:
        """Return the moment at which the UNet is evaluated at this sigma or timestep."""
        raise NotImplementedError
