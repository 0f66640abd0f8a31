"""The clock: what it says of a level, whatever list it was given; `test_walks` has the recorded ones."""

import pytest

from lib_lora.schedule.clock import Clock


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
