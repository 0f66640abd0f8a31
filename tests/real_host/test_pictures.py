"""What the real WebUI draws with the extension: static tags as before, schedules as what they say."""

import numpy as np
import pytest

from tests.real_host.pictures import CLEARLY, asked, close

CONSTANT, STATIC = "<lora:one:1@0,1@1>", "<lora:one:1>"
OFF_BY_5_PERCENT = "<lora:one:0.95@0,0.95@1>"
RAMP = "<lora:one:te=1:unet=0@0,1@1>"

SAMPLERS = {
    "euler": {},
    "one-step": {"steps": 1},
    "two-steps": {"steps": 2},
    "heun": {"sampler_name": "Heun"},
    "dpm-sde": {"sampler_name": "DPM++ SDE"},
    "dpm-2m": {"sampler_name": "DPM++ 2M"},
    "euler-a": {"sampler_name": "Euler a"},
    "restart": {"sampler_name": "Restart"},
    "ddim": {"sampler_name": "DDIM"},
    "plms": {"sampler_name": "PLMS"},
    "unipc": {"sampler_name": "UniPC"},
}
SETTINGS = {
    "batch-size": {"batch_size": 2},
    "rows-apart": {"override_settings": {"batch_cond_uncond": False}},
}
HIRES = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}


def rounded_away(drawn):
    """Return what of an infotext must not change: all but the prompt."""
    return drawn.infotext.partition("\n")[2]


@pytest.mark.parametrize(
    "tags", ["", STATIC, "<lora:one:0.8:0.5>", "<lora:one:te=0.3:unet=0.7><lora:two:0.5>"]
)
def test_static_tags_draw_the_same_pixels_with_the_extension_and_without(webui, stock, tags):
    ours, theirs = webui.draw(tags), stock.draw(tags)
    assert np.array_equal(ours.pixels, theirs.pixels)
    assert ours.infotext == theirs.infotext


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_constant_schedule_is_the_static_tag(webui, figures, name):
    settings = SAMPLERS[name]
    constant, static = webui.draw(CONSTANT, **settings), webui.draw(STATIC, **settings)
    assert close(figures("constant to static", constant.differs(static)))
    assert figures("none to static", webui.draw("", **settings).differs(static))[0] > CLEARLY
    off = webui.draw(OFF_BY_5_PERCENT, **settings)
    assert not close(figures("5 % off to static", off.differs(static)))
    assert "Loom errors" not in constant.infotext


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_schedule_of_zeros_is_no_tag(webui, figures, name):
    settings = SAMPLERS[name]
    off, none = webui.draw("<lora:one:0@0,0@1>", **settings), webui.draw("", **settings)
    assert figures("zeros to none", off.differs(none)) == (0, 0)


@pytest.mark.parametrize("name", ["euler", "ddim", "unipc"])
def test_a_ramp_is_neither_end(webui, figures, name):
    settings = SAMPLERS[name]
    ramp = webui.draw(RAMP, **settings)
    zero = webui.draw("<lora:one:te=1:unet=0>", **settings)
    assert figures("ramp to unet 0", ramp.differs(zero))[0] > 0.1
    assert figures("ramp to 1", ramp.differs(webui.draw(STATIC, **settings)))[0] > 0.1


def test_a_single_step_takes_the_start_of_a_ramp(webui):
    ramp, zero = webui.draw(RAMP, steps=1), webui.draw("<lora:one:te=1:unet=0>", steps=1)
    assert close(ramp.differs(zero))


def test_the_text_encoder_has_a_strength_of_its_own(webui, figures):
    tag = "<lora:words:te=0.4:unet="
    ours, theirs = webui.draw(f"{tag}0@0,1@1>"), webui.draw(f"{tag}0>")
    assert close(figures("ours to theirs", ours.differs(theirs)))
    off = webui.draw("<lora:words:te=0.38:unet=0>")
    assert not close(figures("5 % off to theirs", ours.differs(off)))
    assert not close(figures("none to theirs", webui.draw().differs(theirs)))


def test_a_text_encoder_curve_is_neither_end(webui, figures):
    ramp = webui.draw("<lora:words:te=0@0,0.8@1:unet=0>")
    high = webui.draw("<lora:words:te=0.8:unet=0>")
    assert not close(figures("ramp to none", ramp.differs(webui.draw())))
    assert not close(figures("ramp to its end", ramp.differs(high)))
    flat = webui.draw("<lora:words:te=0.8@0,0.8@1:unet=0>")
    assert close(figures("flat to its end", flat.differs(high)))


@pytest.mark.parametrize("name", ["batch-size", "rows-apart"])
def test_the_negative_prompt_has_a_strength_of_its_own(webui, figures, name):
    settings = SETTINGS[name]
    same = webui.draw("<lora:one:1:neg=1>", **settings)
    assert close(figures("same to static", same.differs(webui.draw(STATIC, **settings))))
    off = webui.draw("<lora:one:1:neg=0>", **settings)
    assert not close(figures("off to static", off.differs(webui.draw(STATIC, **settings))))
    apart = webui.draw("<lora:one:1:neg=0>", **{**settings, **SETTINGS["rows-apart"]})
    whole = {"override_settings": {"batch_cond_uncond": True}}
    together = webui.draw("<lora:one:1:neg=0>", **{**settings, **whole})
    assert close(figures("rows together to rows apart", together.differs(apart)))


def test_a_static_tag_and_a_schedule_act_together(webui, figures):
    ours = webui.draw("<lora:two:0.7><lora:one:1@0,1@1>")
    theirs = webui.draw("<lora:two:0.7><lora:one:1>")
    assert close(figures("ours to theirs", ours.differs(theirs)))
    assert not close(ours.differs(webui.draw(CONSTANT)))


def test_weights_can_be_kept_untouched(webui, figures):
    webui.post("/sdapi/v1/options", {"loom_keep_weights": True})
    try:
        kept = webui.draw_anew("txt2img", asked(STATIC))
    finally:
        webui.post("/sdapi/v1/options", {"loom_keep_weights": False})
    assert close(figures("kept to static", kept.differs(webui.draw(STATIC))))
    assert not close(kept.differs(webui.draw()))


def test_a_window_that_is_never_open_leaves_the_text_encoder(webui):
    shut = webui.draw("<lora:one:1:start=100>")
    assert close(shut.differs(webui.draw("<lora:one:te=1:unet=0>")))


def test_the_hires_pass_has_strengths_of_its_own(webui, figures):
    ours = webui.draw("<lora:one:1@0,1@1:hr=0>", **HIRES)
    plain = webui.draw()
    prompt = plain.infotext.partition("\n")[0].strip()
    theirs = webui.draw(STATIC, hr_prompt=f"{prompt} ", **HIRES)
    assert close(figures("ours to theirs", ours.differs(theirs)))
    assert not close(ours.differs(webui.draw(STATIC, **HIRES)))


def test_img2img(webui, figures):
    settings = {"init_images": [webui.draw().as_input], "denoising_strength": 0.5, "seed": 5}

    def paint(tags):
        # The WebUI encodes a picture with noise from wherever the last request left the generator.
        webui.draw_anew("txt2img", asked(steps=1))
        return webui.draw_anew("img2img", asked(tags, **settings))

    static = paint(STATIC)
    assert close(figures("constant to static", paint(CONSTANT).differs(static)))
    assert not close(figures("5 % off to static", paint(OFF_BY_5_PERCENT).differs(static)))
    none = paint("")
    assert not close(figures("none to static", none.differs(static)))
    assert close(figures("zeros to none", paint("<lora:one:0@0,0@1>").differs(none)))


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("<lora:one:0@0,1@x>", "column"),
        ("<lora:nonesuch:0@0,1@1>", "There is no LoRA 'nonesuch'"),
        ("<lora:one:1:strat=3>", "start="),
    ],
)
def test_a_bad_tag_is_told_and_left_out(webui, tag, told):
    drawn = webui.draw(tag)
    assert np.array_equal(drawn.pixels, webui.draw().pixels)
    assert told in drawn.infotext.partition("Loom errors: ")[2]


def test_a_plain_picture_after_a_schedule_is_as_before(webui):
    before = webui.draw()
    webui.draw(RAMP, seed=11)
    after = webui.draw_anew("txt2img", asked())
    assert np.array_equal(before.pixels, after.pixels)


def test_hashes_of_scheduled_networks_are_in_the_infotext(webui):
    ours, theirs = webui.draw(CONSTANT), webui.draw(STATIC)
    assert rounded_away(ours) == rounded_away(theirs)
    assert "Lora hashes" in ours.infotext


def test_conditionings_are_not_taken_from_the_cache_for_another_strength(webui):
    settings = {"override_settings": {"persistent_cond_cache": True}}
    on = webui.draw("<lora:words:te=1:unet=0@0,0@1>", **settings)
    off = webui.draw("<lora:words:te=0:unet=0@0,0@1>", **settings)
    assert close(off.differs(webui.draw()))
    assert not close(on.differs(off))
