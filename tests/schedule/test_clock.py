"""The clock against the noise levels that real samplers asked for, recorded in the WebUI v1.10.1."""

import json
from pathlib import Path

import numpy as np
import pytest

from lib_lora.schedule.clock import Clock

RUNS = json.loads((Path(__file__).parents[1] / "golden/schedule_traces.json").read_text())["runs"]


def walked(run):
    """Return the descending list that the sampler really walks; DDIM never evaluates the entry of the end."""
    if run["kind"] == "sigmas":
        return [level for level in run["schedule"] if level > 0]
    return sorted(run["schedule"], reverse=True)[:-1]


def clock_of(run):
    if run["kind"] == "sigmas":
        return Clock.from_sigmas(run["schedule"])
    return Clock.from_timesteps(walked(run), [level / 100 for level in walked(run)])


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['sampler']}-{run['steps']}")
def test_moments_equal_an_interpolation_by_numpy(run):
    levels, clock = walked(run), clock_of(run)
    axis = np.log if run["kind"] == "sigmas" else np.asarray
    # numpy interpolates on rising values and clamps outside them.
    steps = np.interp(-axis(run["evaluated"]), -axis(levels), np.arange(len(levels)))
    moments = [clock.moment(level) for level in run["evaluated"]]
    np.testing.assert_allclose([moment.step for moment in moments], steps, atol=1e-6)
    np.testing.assert_allclose(
        [moment.progress for moment in moments], steps / (len(levels) - 1), atol=1e-6
    )
    assert {moment.steps for moment in moments} == {len(levels)}
    assert (moments[0].progress, moments[-1].progress) == (0.0, 1.0)


def steps_of(sampler, steps):
    (run,) = (run for run in RUNS if (run["sampler"], run["steps"]) == (sampler, steps))
    return [clock_of(run).moment(level).step for level in run["evaluated"]]


def test_first_order_samplers_stand_at_whole_steps():
    assert steps_of("Euler", 6) == [0, 1, 2, 3, 4, 5]
    assert steps_of("DDIM", 6) == [0, 1, 2, 3, 4, 5]


def test_second_evaluations_of_heun_stand_at_the_next_step():
    assert steps_of("Heun", 6) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_middle_evaluations_of_dpmpp_sde_stand_between_steps():
    # It evaluates half way in log-sigma: at 0.5, 1.5, ... (facts: 0 1/2 1 1 1/2 ...).
    np.testing.assert_allclose(steps_of("DPM++ SDE", 6), np.arange(11) / 2, atol=1e-4)


def test_restart_goes_back_in_time():
    steps = np.array(steps_of("Restart", 20))
    assert np.count_nonzero(np.diff(steps) < 0) == 1


@pytest.mark.parametrize("clock", [Clock.from_sigmas([7.0, 0.0]), Clock.from_timesteps([1], [7.0])])
def test_a_single_evaluation_is_the_start(clock):
    moment = clock.moment(clock.levels[0])
    assert (moment.progress, moment.step, moment.sigma, moment.steps) == (0.0, 0.0, 7.0, 1)


def test_levels_outside_the_list_are_clamped():
    clock = Clock.from_sigmas([8.0, 4.0, 2.0])
    assert (clock.moment(20.0).step, clock.moment(0.5).step, clock.moment(0.0).step) == (0, 2, 2)


def test_a_level_some_bits_off_stands_at_its_step():
    clock = Clock.from_sigmas([8.0, 4.0, 2.0, 1.0])
    assert clock.moment(4.0 * (1 + 1e-6)).step == 1.0
    assert clock.moment(4.0 * (1 - 1e-6)).step == 1.0
    assert 0.9 < clock.moment(4.0 * 1.01).step < 1.0


def test_a_timestep_clock_tells_the_noise_level():
    clock = Clock.from_timesteps([900, 500, 100], [9.0, 1.0, 0.25])
    assert clock.moment(500).sigma == 1.0
    # Half way in log-sigma between 1 and 1/4.
    assert clock.moment(300).sigma == pytest.approx(0.5)
