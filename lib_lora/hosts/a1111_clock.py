"""The clock of a pass in the WebUI: what its samplers build is remembered, and read before the first evaluation.

The host's counters are late, doubled by second-order samplers and not there in inner runs of other extensions; the list that a
sampler builds is what it walks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any

from modules import sd_samplers, shared
from modules.sd_samplers_common import setup_img2img_steps
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.curve import PassName
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
    from_picture = denoiser.init_latent is not None
    return _clock(denoiser.sampler, denoiser.steps, from_picture=from_picture)


def foreseen(p: Any, pass_name: PassName) -> Clock:
    """Return the clock that a pass of a picture will have, from a sampler like the one that will make it.

    Raises UsageError for a sampler that builds its levels in another way.
    """
    hires = pass_name == "hires"
    alike = copy(p)  # a sampler writes into the picture's infotext
    alike.is_hr_pass, alike.extra_generation_params = hires, {}
    name = (p.hr_sampler_name if hires else None) or p.sampler_name
    sampler = sd_samplers.create_sampler(name, shared.sd_model)
    from_picture = hires or bool(getattr(p, "init_images", None))
    asked = launched = p.steps
    if from_picture:
        wanted = (p.hr_second_pass_steps or p.steps) if hires else None
        asked, last = setup_img2img_steps(p, wanted)
        launched = last + 1
    build = sampler.get_timesteps if isinstance(sampler, CompVisSampler) else sampler.get_sigmas
    build(alike, asked)
    return _clock(sampler, launched, from_picture=from_picture)


def _clock(sampler: Any, launched: int, *, from_picture: bool) -> Clock:
    built = built_by(sampler)
    if not isinstance(sampler, CompVisSampler):
        return clock_of_sigmas(built.levels, asked=built.asked, launched=launched)
    kept = shared.sd_model.alphas_cumprod
    return clock_of_timesteps(
        sampler.config.name,
        built.levels,
        ((1 - kept) / kept).sqrt().tolist(),
        launched=launched,
        from_picture=from_picture,
        grid=shared.opts.uni_pc_skip_type,
    )
