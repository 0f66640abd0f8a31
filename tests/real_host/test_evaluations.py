"""Every call of the model in the real WebUI against one whose weights hold the networks, given the same input.

The reference is made by `inside/merged.py`: deltas in float64, added to the WebUI's own modules and rounded once, without any hook. Which
strength a call should have is worked out here, from the noise levels at which the WebUI was seen to evaluate.
"""

import math

import pytest

from tests.real_host.models import TYPES

EXACT = 1e-5  # of the range of the reference
# Below it the control of 5 % is too near to the reference to be told apart.
WEAK = 0.003
RAMP = "<lora:one:te=1:unet=0@0,1@1>"
MIDPOINTS, RISES = ("DPM++ SDE",), ("Restart",)
TIMESTEPS = ("DDIM", "UniPC")


def levels_of(drawn):
    """Return the noise level of every evaluation."""
    return [
        level for _, level in sorted({(c["evaluation"], c["level"]) for c in drawn.seen["calls"]})
    ]


def positions(drawn, sampler):
    """Return where every evaluation of a pass stands between its first and its last step, by the noise level.

    In log sigma, or in timesteps; the steps are the levels that were evaluated, but for samplers that go to others in between.
    """
    levels = levels_of(drawn)
    steps = list(dict.fromkeys(levels))
    if sampler in MIDPOINTS:
        steps = levels[::2]
    if sampler in RISES:
        steps = drawn.seen["built"][0][:-1]
    axis = float if sampler in TIMESTEPS else math.log
    return [position(axis(level), [axis(step) for step in steps]) for level in levels]


def position(level, steps):
    for index in range(len(steps) - 1):
        above, below = steps[index : index + 2]
        if above >= level >= below:
            return (index + (above - level) / (above - below)) / (len(steps) - 1)
    return 0.0


def assert_exact(drawn, figures):
    """Assert that every call was what it should be, that those watched for it would not be so 5 % off, and that the network mattered."""
    calls = drawn.seen["calls"]
    figures("calls", len(calls))
    assert figures("difference", max(call["difference"] for call in calls)) <= EXACT
    acting = [call for call in calls if call.get("none", 0) > WEAK]
    assert acting
    assert figures("5 % off, least", min(call["off"] for call in acting)) > 10 * EXACT
    figures("none, most", max(call["none"] for call in acting))
    assert "Loom errors" not in drawn.infotext


RUNS = [(name, steps) for name in ("Euler", "Heun", "DPM++ SDE") for steps in (1, 2, 5)]
RUNS += [("Restart", steps) for steps in (1, 2, 20)]
# The WebUI's UniPC wants three steps, its DDIM leaves out the first of them.
RUNS += [("UniPC", 3), ("UniPC", 5), ("DDIM", 2), ("DDIM", 3), ("DDIM", 6)]


@pytest.mark.parametrize(("sampler", "steps"), RUNS)
def test_a_ramp(host, figures, sampler, steps):
    settings = {"sampler_name": sampler, "steps": steps}
    at = positions(host.watch(**settings), sampler)
    # From 1 and not from 0, which a single evaluation would have.
    strengths = [{"one": 1 - 0.75 * share} for share in at]
    tag = "<lora:one:te=1:unet=1@0,0.25@1>"
    assert_exact(host.watch(tag, plan={"strengths": strengths}, **settings), figures)


@pytest.mark.parametrize("sampler", ["Euler", "Heun", "DPM++ SDE", "DDIM", "UniPC", "Restart"])
def test_a_constant_schedule(host, figures, sampler):
    plan = {"strengths": {"one": 1}}
    drawn = host.watch("<lora:one:1@0,1@1>", plan=plan, sampler_name=sampler, steps=3)
    assert_exact(drawn, figures)


@pytest.mark.parametrize("sampler", ["Euler", "Heun", "DPM++ SDE"])
def test_a_switch_from_one_network_to_another(host, figures, sampler):
    settings = {"sampler_name": sampler, "steps": 4}
    at = positions(host.watch(**settings), sampler)
    strengths = [{"one": 1} if share < 0.5 else {"two": 1} for share in at]
    tags = "<lora:one:te=1:unet=1@0,0@0.5|step><lora:two:te=1:unet=0@0,1@0.5|step>"
    drawn = host.watch(tags, plan={"strengths": strengths}, **settings)
    assert_exact(drawn, figures)
    assert {len(one) for one in map(tuple, strengths)} == {1}


@pytest.mark.parametrize("sampler", ["Euler", "Heun", "DPM++ SDE"])
def test_a_window(host, figures, sampler):
    settings = {"sampler_name": sampler, "steps": 5}
    at = positions(host.watch(**settings), sampler)
    inside = [1 <= 4 * share < 3 for share in at]
    strengths = [{"one": float(one)} for one in inside]
    drawn = host.watch("<lora:one:1:start=1:stop=3>", plan={"strengths": strengths}, **settings)
    assert_exact(drawn, figures)
    assert {True, False} == set(inside)


@pytest.mark.parametrize("name", TYPES)
def test_a_ramp_of_every_type(host, figures, name):
    plan = {"strengths": [{name: share} for share in (1, 0.75, 0.5)]}
    drawn = host.watch(f"<lora:{name}:te=1:unet=1@0,0.5@1>", plan=plan, steps=3)
    assert_exact(drawn, figures)


def test_two_ramps_of_two_networks(host, figures):
    plan = {"strengths": [{"one": share, "two": 1 - share} for share in (0, 0.5, 1)]}
    tags = "<lora:one:te=1:unet=0@0,1@1><lora:two:te=1:unet=1@0,0@1>"
    assert_exact(host.watch(tags, plan=plan, steps=3), figures)


def test_one_network_in_two_tags(host, figures):
    plan = {"strengths": {"one": 1}}
    tags = "<lora:one:te=1:unet=0@0,1@1><lora:one:te=1:unet=1@0,0@1>"
    assert_exact(host.watch(tags, plan=plan, steps=3), figures)


def test_a_static_tag_beside_a_schedule(host, figures):
    # The WebUI's own network is in the weights already, to which the reference adds.
    plan = {"strengths": [{"one": share} for share in (0, 0.5, 1)]}
    assert_exact(host.watch(f"<lora:two:0.7>{RAMP}", plan=plan, steps=3), figures)


def test_rows_of_the_negative_prompt(host, figures):
    plan = {
        "strengths": [{"one": share} for share in (0, 0.5, 1)],
        "negative": {"one": 0.3},
    }
    tag = "<lora:one:te=0:unet=0@0,1@1:neg=0.3>"
    drawn = host.watch(tag, plan=plan, steps=3, negative_prompt="a red square")
    assert_exact(drawn, figures)


@pytest.mark.parametrize(
    "names", ["te=0.4@0,0.4@1:unet=0", "te=0@0,0.8@1:unet=0"], ids=["constant", "curve"]
)
def test_the_text_encoder(host, figures, names):
    """Its conditionings are compared, positive and negative; a curve of four steps is encoded at each of them."""
    shares = [0.4] * 4 if "0.4" in names else [0.8 * index / 3 for index in range(4)]
    texts = ["a green ring", "a red square"]
    plan = {"words": [{"words": share} for share in shares], "texts": texts}
    drawn = host.watch(
        plan=plan, steps=4, prompt=f"{texts[0]}<lora:words:{names}>", negative_prompt=texts[1]
    )
    assert_exact(drawn, figures)


def test_the_hires_pass(host, figures):
    """A ramp starts anew there; `hr=` has its own strengths."""
    hires = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
    seen = host.watch(steps=3, **hires)
    count = len(seen.seen["calls"])
    strengths = [{"one": share} for share in (0, 0.5, 1)]
    strengths += [{"one": 0.8 * share} for share in spread(count - 3)]
    tag = "<lora:one:te=1:unet=0@0,1@1:hrte=1:hrunet=0@0,0.8@1>"
    drawn = host.watch(tag, plan={"strengths": strengths}, steps=3, **hires)
    assert_exact(drawn, figures)


def spread(count):
    return [index / (count - 1) for index in range(count)]


def test_every_batch_begins_anew(host, figures):
    plan = {"strengths": [{"one": share} for share in (0, 0.5, 1)] * 3}
    drawn = host.watch(RAMP, plan=plan, steps=3, n_iter=3, batch_size=2)
    assert {call["rows"] for call in drawn.seen["calls"]} == {4}
    assert_exact(drawn, figures)
