"""Which of the levels that a sampler of the WebUI builds it really walks, and the clock of that walk.

A sampler builds a list for all steps of the picture, then starts somewhere in it (a picture that is painted over starts late), leaves
entries out, or takes another grid altogether. The rules are v1.10.1's `sd_samplers_kdiffusion.py`, `sd_samplers_timesteps.py` and
`sd_samplers_timesteps_impl.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from lib_lora.schedule.clock import Clock

Levels = tuple[float, ...]
Grid = Literal["time_uniform", "time_quadratic", "logSNR"]


def clock_of_sigmas(built: Sequence[float], *, asked: int, launched: int) -> Clock:
    """Return the clock of a pass of a k-diffusion sampler, whichever it is.

    built: what `get_sigmas` returned, most noise first, to its end, from which no step starts (most often 0); asked: the number of
    steps that it was called with; launched: the steps of the pass, `denoiser.steps`, fewer when it starts from a picture.
    Restart, DPM fast and DPM adaptive walk levels of their own between the ends of this list; Restart goes back in time.
    """
    return Clock.from_sigmas(built[max(asked - launched, 0) : -1])


def clock_of_timesteps(
    sampler: str,
    built: Sequence[float],
    noise: Sequence[float],
    *,
    launched: int,
    from_picture: bool,
    grid: Grid = "time_uniform",
) -> Clock:
    """Return the clock of a pass of a timestep sampler; one that is not in the table walks all that it built.

    sampler: its name in the WebUI; built: what `get_timesteps` returned, least noise first; noise: the sigma of every timestep of
    training; launched: `denoiser.steps`; from_picture: the pass is img2img's or hires fix', which launches one step more
    than it hands over; grid: the option "UniPC skip type". The clock has no level where the sampler evaluates nothing.
    """
    handed = built[: launched - 1] if from_picture else built
    if sampler == "UniPC":
        walk = _unipc(handed, from_picture, noise, grid)
    else:
        walk = _WALKS.get(sampler, _all)(handed)
    return Clock.from_timesteps(walk, [_noise_at(noise, timestep) for timestep in walk])


def _all(handed: Sequence[float]) -> Levels:
    return tuple(reversed(handed))


def _without_end(handed: Sequence[float]) -> Levels:
    """The smallest timestep is only gone to."""
    return _all(handed[1:])


def _plms(handed: Sequence[float]) -> Levels:
    """The first step evaluates where it goes to as well: with a single step that is the end."""
    return _all(handed if len(handed) == 2 else handed[1:])


_WALKS: Mapping[str, Callable[[Sequence[float]], Levels]] = {
    "DDIM": _without_end,
    "DDIM CFG++": _without_end,
    "PLMS": _plms,
}


def _unipc(
    handed: Sequence[float], from_picture: bool, noise: Sequence[float], grid: Grid
) -> Levels:
    """As many steps as it was handed timesteps, from the last one (from 999 without a picture) to 0, which is not evaluated.

    The steps are even in the timestep, in the root of the timestep counted from 1, or in log-sigma.
    """
    if not handed:
        return ()
    first = int(handed[-1]) if from_picture else len(noise) - 1
    left = [1 - step / len(handed) for step in range(len(handed))]
    if grid == "time_uniform":
        return tuple(first * share for share in left)
    if grid == "time_quadratic":
        root = math.sqrt(first + 1)
        return tuple((1 + (root - 1) * share) ** 2 - 1 for share in left)
    span = noise[first] / noise[0]
    return tuple(_timestep_at(noise, noise[0] * math.pow(span, share)) for share in left)


def _timestep_at(noise: Sequence[float], sigma: float) -> float:
    """Return the timestep of a sigma, interpolated in the logarithm of the picture's share, 1 / sqrt(1 + sigma^2), as UniPC does."""
    after = min(max(bisect_right(noise, sigma), 1), len(noise) - 1)
    low, here, high = (math.log1p(level**2) for level in (noise[after - 1], sigma, noise[after]))
    return after - 1 + (here - low) / (high - low)


def _noise_at(noise: Sequence[float], timestep: float) -> float:
    """Return the sigma at a timestep, in log-sigma between two whole ones."""
    last = len(noise) - 1  # which a rounding may exceed
    before, after = noise[math.floor(timestep)], noise[min(math.ceil(timestep), last)]
    return before * math.pow(after / before, timestep - math.floor(timestep))
