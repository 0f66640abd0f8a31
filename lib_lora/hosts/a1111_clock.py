"""The clock of a pass in the WebUI: what its samplers build is remembered, and read before the first evaluation.

The host's counters are late, doubled by second-order samplers and not there in inner runs of other extensions; the list that a
sampler builds is what it walks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from modules import shared
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.walks import clock_of_sigmas, clock_of_timesteps

BUILDERS = ((KDiffusionSampler, "get_sigmas"), (CompVisSampler, "get_timesteps"))
"""The methods that build the list of a pass; `remembering` goes around them, on the class."""

_NAME = "loom_built"

Build = Callable[[Any, Any, int], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """What a sampler built for one pass: its sigmas or timesteps, and the number of steps it was asked for."""

    levels: tuple[float, ...]
    asked: int


def remembering(build: Build) -> Build:
    """Return a builder that leaves its unchanged result on the sampler too."""

    @wraps(build)
    def remember(sampler: Any, p: Any, steps: int) -> Tensor:
        levels = build(sampler, p, steps)
        setattr(sampler, _NAME, Built(tuple(levels.tolist()), steps))
        return levels

    return remember


def built_by(sampler: Any) -> Built:
    """Return what a sampler built last; raises UsageError for a sampler that builds its levels in another way."""
    built = getattr(sampler, _NAME, None)
    if built is None:
        raise UsageError(f"The sampler {sampler.config.name!r} does not tell its noise levels.")
    return built


def clock_of(denoiser: Any) -> Clock:
    """Return the clock of the pass that a denoiser is in."""
    sampler = denoiser.sampler
    built = built_by(sampler)
    if not isinstance(sampler, CompVisSampler):
        return clock_of_sigmas(built.levels, asked=built.asked, launched=denoiser.steps)
    kept = shared.sd_model.alphas_cumprod
    return clock_of_timesteps(
        sampler.config.name,
        built.levels,
        ((1 - kept) / kept).sqrt().tolist(),
        launched=denoiser.steps,
        from_picture=denoiser.init_latent is not None,
        grid=shared.opts.uni_pc_skip_type,
    )
