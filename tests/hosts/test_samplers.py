"""The samplers: where they evaluate the UNet, and that the clock reads it."""

import numpy as np
import pytest

from lib_lora.errors import UsageError
from lib_lora.hosts.samplers import SAMPLERS, find_sampler, set_up

LABELS = [sampler.label for sampler in SAMPLERS]

# The noise level of each timestep of SD1, by the definition of its schedule.
KEPT = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
SIGMAS = np.sqrt((1 - KEPT) / KEPT)


@pytest.mark.parametrize("label", LABELS)
def test_a_pass_runs_from_the_first_evaluation_to_the_last(label):
    walk = set_up(find_sampler(label), 6)
    moments = [walk.clock.moment(level) for level in walk.levels]
    twice = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [moment.step for moment in moments] == (twice if label == "Heun" else [0, 1, 2, 3, 4, 5])
    assert [moment.progress for moment in moments] == [moment.step / 5 for moment in moments]
    assert {moment.steps for moment in moments} == {6}
    assert len(walk.levels) == len(walk.scheduler.timesteps)


@pytest.mark.parametrize("label", LABELS)
def test_the_clock_tells_the_noise_level_of_the_timestep_that_the_unet_gets(label):
    walk = set_up(find_sampler(label), 6)
    told = [walk.clock.moment(level).sigma for level in walk.levels]
    expected = np.interp(walk.scheduler.timesteps.numpy(), np.arange(1000), SIGMAS)
    # Karras' levels lie between timesteps and the UNet is given the nearest whole one.
    tolerance = 0.02 if label == "DPM++ 2M" else 1e-4
    np.testing.assert_allclose(told, expected, rtol=tolerance)


@pytest.mark.parametrize("label", LABELS)
def test_a_single_step_starts_in_noise(label):
    walk = set_up(find_sampler(label), 1)
    (level,) = walk.levels
    moment = walk.clock.moment(level)
    assert moment.sigma == pytest.approx(SIGMAS[-1], rel=1e-3)
    assert (moment.progress, moment.step) == (0.0, 0.0)


def test_names_are_found_in_any_case():
    assert find_sampler(" euler A").label == "Euler a"
    with pytest.raises(UsageError, match=r"no sampler 'DPM\+\+ 2'. Did you mean 'DPM\+\+ 2M'"):
        find_sampler("DPM++ 2")


@pytest.mark.parametrize("label", LABELS)
def test_the_largest_number_of_steps_is_walked_and_one_more_refused(label):
    sampler = find_sampler(label)
    walk = set_up(sampler, sampler.most)
    assert walk.clock.moment(walk.levels[-1]).progress == 1.0
    with pytest.raises(UsageError, match=f"1 to {sampler.most} are accepted"):
        set_up(sampler, sampler.most + 1)


@pytest.mark.parametrize("steps", [0, -3, 2000])
def test_impossible_numbers_of_steps_are_refused(steps):
    with pytest.raises(UsageError, match=f"{steps} steps"):
        set_up(find_sampler("Euler"), steps)
