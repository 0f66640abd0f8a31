"""Whatever happens to a picture with schedules in the real WebUI, the model is the one of before, and so is the next picture."""

import numpy as np
import pytest

RAMP = "<lora:one:0@0,1@1>"


@pytest.fixture
def clean(host):
    """What the model answers, how many hooks are on it and what it draws without a schedule."""
    plain = host.watch()
    return host.ask("apply"), plain


def assert_clean(host, clean):
    # Called directly, while whatever is left of the last picture is there.
    assert host.ask("apply")["hash"] == clean[0]["hash"]
    after = host.watch()
    assert np.array_equal(after.pixels, clean[1].pixels)
    assert after.infotext == clean[1].infotext
    assert host.ask("apply") == clean[0]


def test_an_exception_in_the_unet(host, clean):
    with pytest.raises(RuntimeError, match="out of memory"):
        host.watch(RAMP, steps=5, at={2: "raise"})
    assert_clean(host, clean)


@pytest.mark.parametrize("mishap", ["interrupt", "skip"])
def test_a_picture_that_is_broken_off(host, clean, mishap, figures):
    drawn = host.watch(RAMP, steps=5, at={2: mishap})
    assert figures("evaluations", len(drawn.seen["calls"])) == 3
    assert_clean(host, clean)


def test_an_exception_in_the_hires_pass(host, clean):
    hires = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
    with pytest.raises(RuntimeError, match="out of memory"):
        host.watch(RAMP, at={5: "raise"}, **hires)
    assert_clean(host, clean)


@pytest.mark.parametrize(
    "tag",
    ["<lora:one:0@0,1@x>", "<lora:nonesuch:0@0,1@1>", "<lora:one:0@0,1@1", "<lora:one:strat=3>"],
)
def test_a_bad_tag(host, clean, tag):
    host.watch(RAMP)
    host.watch(tag)
    assert_clean(host, clean)


def test_static_after_scheduled_and_scheduled_after_static(host):
    first = host.watch("<lora:one:1>")
    host.watch(RAMP)
    assert np.array_equal(host.watch("<lora:one:1>").pixels, first.pixels)
    ramp = host.watch(RAMP)
    host.watch("<lora:two:1>")
    assert np.array_equal(host.watch(RAMP).pixels, ramp.pixels)


@pytest.mark.parametrize("other", ["other", "own"])
def test_a_change_of_the_model_and_back(host, start, other, figures):
    """`other` is loaded into the same object, `own` into another one. The stock WebUI takes the same way with static tags."""
    journeys = []
    for process, tag in ((host, RAMP), (start(extension=False), "<lora:one:0.7>")):
        choose(process, "base")
        before = process.watch(tag)
        choose(process, other)
        there = process.watch(tag)
        plain = process.watch()
        choose(process, "base")
        back = process.ask("apply")["hash"]
        journeys.append((before, there, plain, process.watch(), back))
        assert np.array_equal(process.watch(tag).pixels, before.pixels)
    ours, stock = journeys
    assert np.array_equal(ours[2].pixels, stock[2].pixels)
    assert np.array_equal(ours[3].pixels, stock[3].pixels)
    assert ours[4] == stock[4]
    assert figures("the ramp on both models", ours[0].differs(ours[1])[0]) > 1


def choose(process, checkpoint):
    process.post("/sdapi/v1/options", {"sd_model_checkpoint": checkpoint})
    assert process.ask("state")["checkpoint"] == checkpoint
