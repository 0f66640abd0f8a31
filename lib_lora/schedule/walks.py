"""Which of the levels that a sampler of the WebUI builds it really walks, and the clock of that walk.

A sampler builds a list for all steps of the picture, then starts somewhere in it (a picture that is painted over starts late), leaves
entries out, or takes another grid altogether. The rules are v1.10.1's `sd_samplers_kdiffusion.py`, `sd_samplers_timesteps.py` and
`sd_samplers_timesteps_impl.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lib_lora.schedule.clock import Clock

Levels = tuple[float, ...]


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
) -> Clock:
    """Return the clock of a pass of a timestep sampler; one that is not in the table walks all that it built.

    sampler: its name in the WebUI; built: what `get_timesteps` returned, least noise first; noise: the sigma of every timestep of
    training; launched: `denoiser.steps`; from_picture: the pass is img2img's or hires fix', which launches one step more
    than it hands over. The clock has no level where the sampler evaluates nothing.
    """
    handed = built[: launched - 1] if from_picture else built
    walk = _WALKS.get(sampler, _all)(handed, from_picture)
    return Clock.from_timesteps(walk, [_noise_at(noise, timestep) for timestep in walk])


def _all(handed: Sequence[float], from_picture: bool) -> Levels:
    return tuple(reversed(handed))


def _without_end(handed: Sequence[float], from_picture: bool) -> Levels:
    """The smallest timestep is only gone to."""
    return _all(handed[1:], from_picture)


def _plms(handed: Sequence[float], from_picture: bool) -> Levels:
    """The first step evaluates where it goes to as well: with a single step that is the end."""
    return _all(handed if len(handed) == 2 else handed[1:], from_picture)


def _unipc(handed: Sequence[float], from_picture: bool) -> Levels:
    """As many even steps as it was handed timesteps, from the last one (from 999 without a picture) to 0, which is not evaluated.

    This is the grid of the option `time_uniform`, the WebUI's default.
    """
    if not handed:
        return ()
    first, steps = float(handed[-1]) if from_picture else 999.0, len(handed)
    return tuple(first * (steps - step) / steps for step in range(steps))


_WALKS: Mapping[str, Callable[[Sequence[float], bool], Levels]] = {
    "DDIM": _without_end,
    "DDIM CFG++": _without_end,
    "PLMS": _plms,
    "UniPC": _unipc,
}


def _noise_at(noise: Sequence[float], timestep: float) -> float:
    """Return the sigma at a timestep, in log-sigma between two whole ones."""
    before, after = noise[math.floor(timestep)], noise[math.ceil(timestep)]
    return before * math.pow(after / before, timestep - math.floor(timestep))
