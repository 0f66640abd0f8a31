"""The samplers of the standalone host: diffusers' schedulers, with the noise levels at which they evaluate the UNet.

Names and noise schedules are the WebUI's (Euler, Euler a and Heun evenly in timesteps, DPM++ 2M on Karras' schedule), so that a prompt's
schedule falls on the same steps here and there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
)
from diffusers.schedulers.scheduling_utils import SchedulerMixin

from lib_lora.errors import UsageError, did_you_mean
from lib_lora.formats.original import FIRST_BETA, LAST_BETA, TIMESTEPS
from lib_lora.schedule.clock import Clock

BETAS = {
    "num_train_timesteps": TIMESTEPS,
    "beta_start": FIRST_BETA,
    "beta_end": LAST_BETA,
    "beta_schedule": "scaled_linear",
}
# With a single step, the other spacings would start at the end, where no noise is left.
EVEN, LEADING, SINGLE = "linspace", "leading", "trailing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """One sampler. noisy: it draws noise at every step; most: the largest number of steps."""

    label: str
    scheduler: type[SchedulerMixin]
    spacing: str = EVEN
    noisy: bool = False
    most: int = TIMESTEPS
    options: Mapping[str, object] = field(default_factory=dict)


SAMPLERS = (
    Sampler(label="Euler", scheduler=EulerDiscreteScheduler),
    Sampler(label="Euler a", scheduler=EulerAncestralDiscreteScheduler, noisy=True),
    Sampler(label="Heun", scheduler=HeunDiscreteScheduler),
    Sampler(
        label="DPM++ 2M",
        scheduler=DPMSolverMultistepScheduler,
        options={"use_karras_sigmas": True},
    ),
    Sampler(
        label="DDIM",
        scheduler=DDIMScheduler,
        spacing=LEADING,
        most=TIMESTEPS - 1,  # its timesteps start at 1
        options={"steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False},
    ),
)


@dataclass(frozen=True, slots=True)
class Walk:
    """A sampler set up for a number of steps.

    levels: the sigma, or the timestep for DDIM, of every evaluation in order; clock: the clock that reads them.
    """

    sampler: Sampler
    scheduler: SchedulerMixin
    levels: tuple[float, ...]
    clock: Clock


def find_sampler(name: str) -> Sampler:
    """Return the sampler of this name, whatever the case; raises UsageError when there is none."""
    for sampler in SAMPLERS:
        if sampler.label.casefold() == name.strip().casefold():
            return sampler
    labels = [sampler.label for sampler in SAMPLERS]
    raise UsageError(f"There is no sampler {name!r}. {did_you_mean(name, labels)}")


def set_up(sampler: Sampler, steps: int) -> Walk:
    """Return the walk of a sampler over a number of steps; raises UsageError for too few or too many."""
    if not 1 <= steps <= sampler.most:
        raise UsageError(f"{steps} steps were asked for; 1 to {sampler.most} are accepted.")
    spacing = sampler.spacing if steps > 1 else SINGLE
    scheduler = sampler.scheduler(**BETAS, **sampler.options, timestep_spacing=spacing)
    scheduler.set_timesteps(steps)
    timesteps = scheduler.timesteps
    if hasattr(scheduler, "sigmas"):
        levels = tuple(scheduler.sigmas[: len(timesteps)].tolist())
        # A second-order sampler evaluates at most levels twice; the clock wants the list it walks.
        return Walk(sampler, scheduler, levels, Clock.from_sigmas(tuple(dict.fromkeys(levels))))
    kept = scheduler.alphas_cumprod[timesteps].double()
    sigmas = ((1 - kept) / kept).sqrt().tolist()
    levels = tuple(float(timestep) for timestep in timesteps)
    return Walk(sampler, scheduler, levels, Clock.from_timesteps(levels, sigmas))
