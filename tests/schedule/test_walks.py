"""The clock of every pass that was recorded in the WebUI v1.10.1, against positions that were worked out without this project."""

import math

import numpy as np
import pytest

from lib_lora.schedule.walks import clock_of_sigmas, clock_of_timesteps
from tests.golden_data import golden

GOLDEN = golden("positions")
PASSES, RUNS = GOLDEN["passes"], GOLDEN["runs"]
# A made-up model: sigma grows by the same factor from each timestep to the next.
NOISE = [0.03 * 1.006**timestep for timestep in range(1000)]

# What the recording holds no position for: the sampler makes one step too few, or fails in the WebUI itself.
NOT_EVALUATED = {
    *(
        f"{group}/{sampler}/1"
        for group in ("txt2img", "img2img", "hires")
        for sampler in ("DDIM", "DDIM CFG++", "PLMS")
    ),
    *(f"img2img/{sampler}/2" for sampler in ("DDIM", "DDIM CFG++", "PLMS")),
    *(f"hires/{sampler}/2, pass 2" for sampler in ("DDIM", "DDIM CFG++", "PLMS")),
}
FAILED = {
    *(
        f"{group}/{sampler}/1"
        for group in ("txt2img", "img2img", "hires")
        for sampler in ("DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE", "UniPC")
    ),
    *(f"{group}/UniPC/2" for group in ("txt2img", "img2img", "hires")),
    *(
        f"{group}/{sampler}/1"
        for group in ("img2img", "hires")
        for sampler in ("DPM fast", "DPM adaptive")
    ),
}


def clock_of(one):
    if one["kind"] == "sigmas":
        return clock_of_sigmas(one["built"], asked=one["asked"], launched=one["launched"])
    return clock_of_timesteps(
        one["sampler"],
        one["built"],
        NOISE,
        launched=one["launched"],
        from_picture=one["partial"],
    )


def name_of(one):
    return f"{one['sampler']}-{one['launched']}-of-{one['asked']}"


def progress_of(one):
    clock = clock_of(one)
    return [clock.moment(level).progress for level in one["evaluated"]]


@pytest.mark.parametrize("one", PASSES, ids=name_of)
def test_every_recorded_evaluation_stands_where_it_should(one):
    np.testing.assert_allclose(progress_of(one), one["positions"], atol=2e-6)


def test_the_list_as_built_would_be_wrong_for_a_pass_from_a_picture():
    # The control of the test above: Euler from a picture takes the second half of its list.
    (one,) = passes_of("img2img/Euler/20")
    whole = clock_of({**one, "launched": one["asked"]})
    wrong = [whole.moment(level).progress for level in one["evaluated"]]
    assert np.abs(np.subtract(wrong, one["positions"])).max() > 0.4


def test_every_run_is_covered_or_named_here():
    assert set(GOLDEN["without"]) == NOT_EVALUATED | FAILED
    names = {
        f"{group}/{sampler}/{steps}"
        for group in ("txt2img", "img2img", "hires")
        for sampler in {one["sampler"] for one in PASSES}
        for steps in (1, 2, 6, 20)
    }
    assert len(names) == 3 * 20 * 4
    assert names - set(RUNS) == {name for name in NOT_EVALUATED | FAILED if "," not in name}
    assert all(RUNS.values())


def passes_of(name):
    return [PASSES[index] for index in RUNS[name]]


# Looked at by hand: what each sampler evaluates, in steps of the pass that it walks.
SEEN = {
    "Euler": [0, 1, 2, 3, 4, 5],
    "Heun": [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    "DPM++ SDE": [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5],
    "DDIM": [0, 1, 2, 3, 4, 5],
    "PLMS": [0, 1, 1, 2, 3, 4, 5],
    "UniPC": [0, 1, 2, 3, 4, 5, 6],
    "Restart": [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
}


@pytest.mark.parametrize("sampler", SEEN)
def test_six_steps_as_seen_by_hand(sampler):
    (one,) = passes_of(f"txt2img/{sampler}/6")
    clock = clock_of(one)
    steps = [clock.moment(level).step for level in one["evaluated"]]
    np.testing.assert_allclose(steps, SEEN[sampler], atol=1e-4)


def test_restart_goes_back_in_time():
    (one,) = passes_of("txt2img/Restart/20")
    clock = clock_of(one)
    steps = [clock.moment(level).step for level in one["evaluated"]]
    # From sigma 0.0785 back to 2.2656, between steps 17 and 18 and steps 7 and 8 of the list.
    (back,) = np.flatnonzero(np.diff(steps) < 0)
    assert 17 < steps[back] < 18
    assert 7 < steps[back + 1] < 8


def test_a_pass_from_a_picture_starts_at_zero():
    base, hires = passes_of("hires/Euler/6")
    assert (clock_of(base).levels[0], clock_of(hires).levels[0]) == pytest.approx(
        (14.612, 1.3904), 1e-4
    )
    assert progress_of(hires) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_the_end_of_a_list_is_no_step_even_where_noise_is_left():
    # The schedule KL Optimal ends at 0.03 instead of 0; Euler never evaluates it.
    (one,) = passes_of("scheduler/Euler/6/KL Optimal")
    assert one["built"][-1] > 0
    assert clock_of(one).moment(one["evaluated"][-1]).progress == 1.0


def test_a_pass_without_an_evaluation_has_a_clock_without_levels():
    for sampler in ("DDIM", "PLMS", "UniPC"):
        clock = clock_of_timesteps(sampler, [1], NOISE, launched=1, from_picture=True)
        assert clock.levels == ()


def test_the_noise_level_of_a_fractional_timestep_lies_between_its_neighbours():
    clock = clock_of_timesteps("UniPC", [1, 334, 667, 999], NOISE, launched=4, from_picture=False)
    assert clock.levels[1] == 749.25
    # 1/4 of the way in log-sigma from timestep 749 to 750.
    expected = math.log(NOISE[749]) + 0.25 * math.log(1.006)
    assert math.log(clock.moment(749.25).sigma) == pytest.approx(expected)


# What `get_time_steps` of v1.10.1's uni_pc.py returns, less a thousandth and times a thousand, on the betas of SD 1.5.
GRIDS = {
    "time_uniform": ([999, 856.286, 713.571, 570.857, 428.143, 285.429, 142.714], [333, 222, 111]),
    "time_quadratic": (
        [999, 741.459, 522.193, 341.203, 198.489, 94.05, 27.887],
        [333, 155.678, 44.678],
    ),
    "logSNR": ([999, 834.738, 621.959, 359.213, 133.404, 30.648, 4.817], [333, 78.07, 8.793]),
}


@pytest.mark.parametrize("grid", GRIDS)
def test_unipc_walks_the_grid_of_its_option(grid):
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = np.cumprod(1 - betas)
    noise = np.sqrt((1 - kept) / kept).tolist()
    whole, part = GRIDS[grid]
    built = [1, 167, 333, 499, 665, 831, 997]
    clocks = [
        clock_of_timesteps(
            "UniPC", built, noise, launched=launched, from_picture=from_picture, grid=grid
        )
        for launched, from_picture in ((6, False), (4, True))
    ]
    np.testing.assert_allclose(clocks[0].levels, whole, atol=2e-3)
    np.testing.assert_allclose(clocks[1].levels, part, atol=2e-3)


def test_an_unknown_timestep_sampler_walks_all_that_it_built():
    clock = clock_of_timesteps("Other", [1, 501, 901], NOISE, launched=3, from_picture=False)
    assert clock.levels == (901, 501, 1)
