"""What else a person can set in the real WebUI: with each, a constant schedule is the static tag, and a ramp is neither end.

Every call of the model is compared with merged weights as well. Where the two pictures need not be the same, it is said beside the setting.
"""

import numpy as np
import pytest

from tests.real_host.pictures import CLEARLY, PROMPT, close
from tests.real_host.test_evaluations import assert_exact

CONSTANT, STATIC = "<lora:one:1@0,1@1>", "<lora:one:1>"
RAMP = "<lora:one:te=1:unet=0@0,1@1>"
LONG = ", ".join(["a red square beside a green ring above a blue donut"] * 9)

HIRES = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
SETTINGS = {
    "and": {"words": f"{PROMPT} AND a red square :0.7"},
    "and, two pictures": {"words": f"{PROMPT} AND a red square :0.7", "batch_size": 2},
    "negative prompt only": {"words": "", "negative_prompt": "a red square"},
    "batches of two": {"n_iter": 3, "batch_size": 2},
    "batches, hires": {"n_iter": 2, **HIRES},
    "prompts of unequal length": {"words": LONG},
    "prompts padded": {"words": LONG, "override_settings": {"pad_cond_uncond": True}},
    "rows apart": {"override_settings": {"batch_cond_uncond": False}},
    "negative rows skipped": {"override_settings": {"skip_early_cond": 0.5}},
    "next to last sigma": {"override_settings": {"always_discard_next_to_last_sigma": True}},
    "old scheduling": {
        "words": "a [red:blue:0.5] donut",
        "override_settings": {"use_old_scheduling": True},
    },
    "prompt editing": {"words": "a [red:blue:0.5] donut"},
    "clip skip": {"override_settings": {"CLIP_stop_at_last_layers": 2}},
    "tiling": {"tiling": True},
    "token merging": {"override_settings": {"token_merging_ratio": 0.5}},
    "hypertile": {
        "width": 256,
        "height": 128,
        "steps": 3,
        # The tiles are drawn at random where there is a choice, and the reference would have others.
        "override_settings": {"hypertile_enable_unet": True, "hypertile_swap_size_unet": 1},
    },
    "hires": HIRES,
    "hires, latents of the first pass": {
        **HIRES,
        "hr_second_pass_steps": 2,
        "override_settings": {"hires_fix_use_firstpass_conds": True},
    },
    "hires, another model": {**HIRES, "hr_checkpoint_name": "other"},
    "refiner": {"refiner_checkpoint": "other", "refiner_switch_at": 0.5},
    "refiner, hires": {"refiner_checkpoint": "other", "refiner_switch_at": 0.5, **HIRES},
    "refiner, dpm++ sde": {
        "refiner_checkpoint": "other",
        "refiner_switch_at": 0.5,
        "sampler_name": "DPM++ SDE",
    },
}
# Loading another object, the WebUI encodes an empty text for it and forgets its own networks with that: a static tag ends there.
ANOTHER = {"refiner_checkpoint": "own", "refiner_switch_at": 0.5}
WITHOUT_STATIC = {
    "hires, another object": {**HIRES, "hr_checkpoint_name": "own"},
    "refiner, another object": ANOTHER,
    "refiner, another object, dpm++ sde": {**ANOTHER, "sampler_name": "DPM++ SDE"},
    "refiner, another object, hires": {**ANOTHER, **HIRES},
}


def draw(host, tags, settings, plan=None):
    changes = dict(settings)
    words = changes.pop("words", PROMPT)
    return host.watch(plan=plan, **{**changes, "prompt": f"{words} {tags}"})


@pytest.mark.parametrize("name", [*SETTINGS, *WITHOUT_STATIC])
def test_a_constant_schedule_is_the_static_tag(host, figures, name):
    settings = {**SETTINGS, **WITHOUT_STATIC}[name]
    constant = draw(host, CONSTANT, settings, {"strengths": {"one": 1}})
    assert_exact(constant, figures)
    static, none, ramp = (draw(host, tags, settings) for tags in (STATIC, "", RAMP))
    if name in SETTINGS:
        assert close(figures("constant to static", constant.differs(static)))
    assert figures("none to constant", none.differs(constant)[0]) > CLEARLY
    assert figures("ramp to constant", ramp.differs(constant)[0]) > 0.1
    assert figures("ramp to none", ramp.differs(none)[0]) > 0.1


@pytest.mark.parametrize(
    "name",
    [name for name in SETTINGS if "model" in name or "refiner" in name] + [*WITHOUT_STATIC],
)
def test_both_models_are_seen(host, name):
    drawn = draw(host, CONSTANT, {**SETTINGS, **WITHOUT_STATIC}[name])
    second = "own" if name in WITHOUT_STATIC else "other"
    models = [*dict.fromkeys(call["checkpoint"] for call in drawn.seen["calls"])]
    assert models == ["base", second]


def test_a_ramp_goes_on_in_a_refiner_that_is_another_object(host, figures):
    """Its text encoder too has the strength of the step: the conditionings are encoded anew by it."""
    plan = {"strengths": [{"one": share} for share in (0, 1 / 3, 2 / 3, 1)]}
    assert_exact(draw(host, RAMP, {**ANOTHER, "steps": 4}, plan), figures)
    texts = ["a green ring", "a red square"]
    plan = {"words": [{"words": 0.8 * share} for share in (0, 1 / 3, 2 / 3, 1)], "texts": texts}
    tag = "<lora:words:te=0@0,0.8@1:unet=0>"
    words = {"words": texts[0], "negative_prompt": texts[1], "steps": 4}
    encoded = draw(host, tag, {**ANOTHER, **words}, plan)
    assert_exact(encoded, lambda name, value: figures(f"words: {name}", value))


def test_the_tiles_of_hypertile_and_the_merged_tokens_are_there(host):
    for name in ("hypertile", "token merging"):
        with_it = draw(host, "", SETTINGS[name])
        without = draw(host, "", {**SETTINGS[name], "override_settings": {}})
        assert with_it.differs(without)[0] > 0.1, name


@pytest.fixture
def picture(host):
    return host.watch().as_input


IMG2IMG = {
    "half": {},
    "one step": {"steps": 1},
    "two steps": {"steps": 2},
    "ddim": {"sampler_name": "DDIM", "steps": 8},
    "heun": {"sampler_name": "Heun"},
    "batches of two": {"n_iter": 2, "batch_size": 2},
}


def paint(host, picture, tags, settings, plan=None):
    # The WebUI encodes a picture with noise from wherever the last request left the generator.
    host.watch(steps=1)
    changes = {"init_images": [picture], "denoising_strength": 0.5, "seed": 5, **settings}
    return host.watch(tags, "img2img", plan=plan, **changes)


def test_a_text_encoder_curve_over_sigma_behind_another_pass_of_the_same_words(
    host, figures, picture
):
    """The WebUI's cache holds the words of txt2img, which starts with more noise: those of strength 0."""
    texts = ["a green ring", "a red square"]
    tag = "<lora:words:te=0@s14,0.8@s5|step:unet=0>"
    words = {"prompt": f"{texts[0]}{tag}", "negative_prompt": texts[1], "steps": 4}
    host.watch(**words)
    plan = {"words": [{"words": 0.8}] * 3, "texts": texts}
    settings = {"init_images": [picture], "denoising_strength": 0.5}
    assert_exact(host.watch(page="img2img", plan=plan, **settings, **words), figures)


def mask():
    from tests.real_host.pictures import Drawn

    levels = np.zeros((1, 64, 64, 3))
    levels[:, 16:48, 16:48] = 255
    return Drawn(levels, "").as_input


def img2img_settings(name):
    if name == "soft inpainting":
        script = {"soft inpainting": {"args": [True, 1, 0.5, 4, 0, 0.5, 2]}}
        return {"mask": mask(), "alwayson_scripts": script, "denoising_strength": 0.7}
    if name == "inpainting":
        return {"mask": mask(), "denoising_strength": 0.7}
    return IMG2IMG[name]


@pytest.mark.parametrize("name", [*IMG2IMG, "inpainting", "soft inpainting"])
def test_img2img(host, figures, picture, name):
    settings = img2img_settings(name)
    constant = paint(host, picture, CONSTANT, settings, {"strengths": {"one": 1}})
    assert_exact(constant, figures)
    static, none, ramp = (paint(host, picture, tags, settings) for tags in (STATIC, "", RAMP))
    assert close(figures("constant to static", constant.differs(static)))
    assert figures("none to constant", none.differs(constant)[0]) > 0.1
    if len(constant.seen["calls"]) > 1:
        assert figures("ramp to constant", ramp.differs(constant)[0]) > 0.1


def test_img2img_alternative(host, figures, picture):
    """The script looks for the noise of a picture with calls of its own, which are no evaluations: a schedule does not act there.

    A static tag does, so that the two differ; the picture itself is drawn with the schedule.
    """
    script = {
        "script_name": "img2img alternative test",
        "script_args": [None, True, False, "a donut", "", True, 4, True, 1.0, 0.0, False],
    }
    painted = paint(host, picture, CONSTANT, script, {"strengths": {"one": 1}})
    outside = [call for call in painted.seen["calls"] if call["evaluation"] < 0]
    assert len(outside) == 4
    assert_exact(painted, figures)
