"""The rest of what other tools broke, in the real WebUI. The whole list, and where each point is tested:

| what                                    | where |
| --------------------------------------- | ----- |
| a static tag draws what stock draws     | test_pictures, pixel by pixel against a WebUI without the extension |
| a ramp against merged weights, each type | test_evaluations |
| second-order samplers; 1 and 2 steps    | test_evaluations |
| several batches, with hires             | test_settings; test_evaluations |
| another prompt in the hires pass        | here |
| one LoRA in two tags                    | test_evaluations |
| interrupt, exception, then a plain picture | test_left_behind |
| model A, B, A                           | test_left_behind |
| refiner                                 | test_settings |
| fp8 with two LoRAs                      | here |
| lowvram, medvram                        | test_flags |
| ADetailer                               | here, by an extension that does what it does: a picture inside of the picture |
| LoRA Block Weight                       | here: its tags reach the WebUI untouched; the extension itself is not run |
| Regional Prompter, ControlNet, Tiled    | not run: extensions of others, which no checkout of the WebUI has |
| a batch of different prompts            | here |
| X/Y/Z plot, Prompt S/R with `~` and `;` | here |
| infotext read back                      | here |
| conditionings after a change of settings | here |
| a compiled UNet (TensorRT)              | here, by one that answers zeros |
| a card's click removes the tag          | not there: the extension has no JavaScript for the WebUI's cards; the tag is taken out by hand |
"""

import json

import numpy as np
import pytest

from tests.real_host.pictures import CLEARLY, PROMPT, asked, close, decoded
from tests.real_host.test_evaluations import assert_exact

CONSTANT, STATIC = "<lora:one:1@0,1@1>", "<lora:one:1>"
RAMP = "<lora:one:te=1:unet=0@0,1@1>"
HIRES = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
TXT2IMG = "/sdapi/v1/txt2img"


def test_a_schedule_of_the_hires_prompt(host, figures):
    """The first pass has its own prompt's schedule, the hires pass that of the hires prompt."""
    count = len(host.watch(steps=3, **HIRES).seen["calls"]) - 3
    strengths = [{"one": share} for share in (0, 0.5, 1)]
    strengths += [{"two": 1 - index / (count - 1)} for index in range(count)]
    prompt = "a green ring <lora:two:te=1:unet=1@0,0@1>"
    drawn = host.watch(RAMP, plan={"strengths": strengths}, steps=3, hr_prompt=prompt, **HIRES)
    assert_exact(drawn, figures)


def test_a_picture_inside_of_a_picture(host, figures):
    """Both have ramps of their own; the second batch of the outer one begins anew."""
    inner = {"alwayson_scripts": {"inner pass": {"args": ["a ring <lora:two:te=1:unet=1@0,0@1>"]}}}
    count = len(host.watch(steps=4, n_iter=2, **inner).seen["calls"]) // 2 - 4
    assert count > 1
    outside = [{"one": index / 3} for index in range(4)]
    inside = [{"two": 1 - index / (count - 1)} for index in range(count)]
    plan = {"strengths": (outside + inside) * 2}
    drawn = host.watch(RAMP, plan=plan, steps=4, n_iter=2, **inner)
    assert_exact(drawn, figures)


def test_block_weights_that_their_extension_alone_knows_are_left_to_it(host, start):
    tags = "<lora:one:1:lbw=MINE>"
    ours, stock = host.watch(tags), start(extension=False).watch(tags)
    assert np.array_equal(ours.pixels, stock.pixels)


def test_different_prompts_in_one_batch(host, figures):
    def matrix(tags):
        script = {"script_name": "prompt matrix", "batch_size": 2}
        arguments = [False, False, "positive", "comma", 0]
        prompt = f"{PROMPT} {tags}|in red"
        return host.watch(prompt=prompt, script_args=arguments, **script)

    constant, static = matrix(CONSTANT), matrix(STATIC)
    assert len(static.pixels) == 2
    assert static.pixels[0].shape == static.pixels[1].shape
    assert not np.array_equal(static.pixels[0], static.pixels[1])
    assert close(figures("constant to static", constant.differs(static)))


def test_tags_of_another_prompt_in_one_batch_are_told(host):
    script = {"script_name": "prompt matrix", "script_args": [False, False, "positive", "comma", 0]}
    drawn = host.watch(prompt=f"{PROMPT}|{CONSTANT}", batch_size=2, **script)
    assert "share the schedules of the first" in drawn.infotext.partition("Loom errors: ")[2]


def test_a_plot_over_schedules(host):
    first, second = "0@0~1@1", "1@0;0@1"
    tag = f"<lora:one:te=1:unet={first}>"
    axes = [7, f"{first}, {second}", [], 0, "", [], 0, "", []]
    arguments = [*axes, False, True, False, False, False, False, False, 0, False]
    request = asked(tag, script_name="x/y/z plot", script_args=arguments)
    answer = host.post(TXT2IMG, request)
    cells = [decoded(image) for image in answer["images"]]
    cells = [cell for cell in cells if cell.shape == (64, 64, 3)]
    alone = [host.watch(f"<lora:one:te=1:unet={values}>").pixels[0] for values in (first, second)]
    assert len(cells) == 2
    assert all(map(np.array_equal, cells, alone))
    assert not np.array_equal(*cells)
    assert not any("Loom errors" in text for text in json.loads(answer["info"])["infotexts"])


def test_what_is_wrong_in_one_cell_of_a_plot_is_not_told_of_the_next(host):
    axes = [7, "NOW, none, 0@0~1@1", [], 0, "", [], 0, "", []]
    arguments = [*axes, False, True, False, False, False, False, False, 0, False]
    request = asked("<lora:one:te=1:unet=NOW>", script_name="x/y/z plot", script_args=arguments)
    texts = json.loads(host.post(TXT2IMG, request)["info"])["infotexts"][-3:]
    assert ["Loom errors" in text for text in texts] == [True, True, False]


def test_an_infotext_draws_the_picture_again(host):
    drawn = host.watch(RAMP, steps=3, seed=17)
    request = {"infotext": drawn.infotext, "save_images": False}
    answer = host.post(TXT2IMG, request)
    assert np.array_equal(decoded(answer["images"][0]), drawn.pixels[0])
    assert json.loads(answer["info"])["infotexts"][0] == drawn.infotext


def test_cached_conditionings_after_a_change_of_settings(host, figures):
    cache = {"override_settings": {"persistent_cond_cache": True}}
    tag = "<lora:words:te=0.7:unet=0>"
    first = host.watch(tag, **cache)
    host.post("/sdapi/v1/options", {"loom_keep_weights": True})
    try:
        kept = host.watch(tag, **cache)
    finally:
        host.post("/sdapi/v1/options", {"loom_keep_weights": False})
    assert close(figures("kept to static", kept.differs(first)))
    assert host.watch("", **cache).differs(first)[0] > 0.1
    assert np.array_equal(host.watch(tag, **cache).pixels, first.pixels)


def test_a_compiled_unet_leaves_schedules_out(host):
    host.ask("compile_unet", name="compiled")
    host.post("/sdapi/v1/options", {"sd_unet": "compiled"})
    try:
        plain, drawn = host.watch(), host.watch(RAMP)
    finally:
        host.post("/sdapi/v1/options", {"sd_unet": "None"})
    assert np.array_equal(drawn.pixels, plain.pixels)
    assert "A compiled UNet is active" in drawn.infotext.partition("Loom errors: ")[2]
    assert host.watch(RAMP).differs(host.watch())[0] > CLEARLY


def test_eight_bit_storage_with_two_networks(host, figures):
    """On a CPU the WebUI computes in bfloat16 then: the reference rounds its sums to eight bits, the branch rounds nothing."""
    host.post("/sdapi/v1/options", {"fp8_storage": "Enable"})
    try:
        tags = {name: f"<lora:{name}:1@0,1@1>" for name in ("one", "two")}
        none, one, two, both = (
            host.watch(text) for text in ("", *tags.values(), "".join(tags.values()))
        )
        again = host.watch()
    finally:
        host.post("/sdapi/v1/options", {"fp8_storage": "Disable"})
    assert figures("two to both", two.differs(both)[0]) > CLEARLY
    assert figures("one to both", one.differs(both)[0]) > CLEARLY
    assert np.array_equal(none.pixels, again.pixels)


@pytest.fixture(autouse=True)
def _nothing_stays(host):
    yield
    assert host.ask("state")["checkpoint"] == "base"
