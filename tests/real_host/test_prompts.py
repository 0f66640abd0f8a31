"""What people write in prompts, in the real WebUI: each acts as it says, or is told in a sentence, and the picture is drawn."""

import shutil

import numpy as np
import pytest

from tests.real_host.pictures import PROMPT
from tests.real_host.test_evaluations import assert_exact

RAMP = "<lora:one:te=0:unet=0@0,1@1>"
RISING = [{"one": index / 3} for index in range(4)]
FALLING = [{"one": 1 - index / 3} for index in range(4)]
PROMPTS = {
    "BREAK": (f"{PROMPT} BREAK in red {RAMP}", RISING),
    "signs of other extensions": (f"__color__ {{a|b}} $c {PROMPT} {RAMP}", RISING),
    "escaped signs": (f"a \\[b\\:c\\] \\(d\\) {RAMP}", RISING),
    "emphasis around a tag": (f"({PROMPT} {RAMP}:1.2) [b]", RISING),
    "spaces in a tag": (f"{PROMPT} <lora: one : te=0 : unet = 0@0 , 1@1 >", RISING),
    "a line's end in a tag": (f"{PROMPT} <lora:one:te=0:unet=0@0,\n1@1>", RISING),
    "beside a static tag of the same network": (f"<lora:one:0.5> {PROMPT} {RAMP}", RISING),
    "AND, each with a curve": (
        f"{PROMPT} {RAMP} AND red <lora:two:te=0:unet=1@0,0@1> :0.7",
        [{"one": index / 3, "two": 1 - index / 3} for index in range(4)],
    ),
    "a static tag taken out": (
        f"{PROMPT} [<lora:one:te=0:unet=1>::0.5]",
        [*[{"one": 1}] * 2, {}, {}],
    ),
    "a curve taken out": (
        f"{PROMPT} [<lora:one:te=0:unet=1@0,0@1>:<lora:two:te=0:unet=1>:2]",
        [*FALLING[:2], *[{"two": 1}] * 2],
    ),
    "brackets inside of brackets": (
        f"[[{PROMPT} <lora:one:te=0:unet=1>:red:3]:1]",
        [{}, *[{"one": 1}] * 2, {}],
    ),
    "five thousand keyframes": (
        f"{PROMPT} <lora:one:te=0:unet={','.join(f'{n / 5000}@{n / 5000}' for n in range(5001))}>",
        RISING,
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_acts_as_it_says(host, figures, name):
    prompt, strengths = PROMPTS[name]
    assert_exact(host.watch(prompt=prompt, plan={"strengths": strengths}), figures)


@pytest.fixture(scope="module")
def names(host, models):
    """Networks whose names have signs in them, each the same as the first one."""
    folder = models / "networks"
    given = ("süß-模型", "of two words", "v1.5.x", "a=b", "a@b", "brack[et]", "par(en)", "comma,s")
    places = [
        *(folder / f"{name}.safetensors" for name in given),
        folder / "in" / "side.safetensors",
    ]
    (folder / "in").mkdir()
    for place in places:
        shutil.copy(folder / "one.safetensors", place)
    yield [place.stem for place in places]
    for place in places:
        place.unlink()


def test_names_with_signs_in_them(host, names):
    right = host.watch("<lora:one:te=1:unet=0@0,1@1>")
    for name in names:
        drawn = host.watch(f"<lora:{name}:te=1:unet=0@0,1@1>")
        assert np.array_equal(drawn.pixels, right.pixels), name
        assert "Loom errors" not in drawn.infotext


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("<lora:one:nan>", "a number or keyframes"),
        ("<lora:one:te=inf:unet=1>", "a number or keyframes"),
        ("<lora:one:>", "a number or keyframes"),
        ("<lora:one:1@0,,0@1>", "a number or keyframes"),
        ("<lora:one:1@0,0@150%>", "a fraction of at most 1"),
        ("<lora:one:1:start=3:stop=1>", "a step behind 3"),
        ("<lora:one:1:start=-1>", "a step, counted from 0"),
        ("<lora:>", "the name of a LoRA"),
        ("<lora:in/nowhere:0@0,1@1>", "There is no LoRA 'in/nowhere'"),
        ("<lora:ONE:0@0,1@1>", "Did you mean 'one'?"),
    ],
)
def test_what_is_wrong_is_told_and_left_out(host, tag, told):
    drawn = host.watch(tag)
    assert told in drawn.infotext.partition("Loom errors: ")[2]
    assert np.array_equal(drawn.pixels, host.watch().pixels)


def test_schedules_in_the_negative_prompt_are_told(host):
    drawn = host.watch(negative_prompt=f"bad {RAMP}")
    assert "neg=" in drawn.infotext.partition("Loom errors: ")[2]
    static = host.watch(negative_prompt="bad <lora:one:1>")
    assert "Loom errors" not in static.infotext


def test_prompts_from_lines(host):
    """Every line is a batch of its own."""
    lines = [f"{PROMPT} {RAMP}", f"a ring {RAMP.replace('one', 'two')}", PROMPT]
    script = {"script_name": "prompts from file or textbox"}
    arguments = [False, False, "start", "\n".join(lines)]
    drawn = host.watch(prompt="", script_args=arguments, **script)
    alone = [host.watch(prompt=line).pixels[0] for line in lines]
    assert all(map(np.array_equal, drawn.pixels, alone))


SAMPLING = {
    "another seed mixed in": {"subseed": 5, "subseed_strength": 0.4},
    "a seed of another size": {"seed_resize_from_w": 128, "seed_resize_from_h": 128},
    "no guidance": {"cfg_scale": 1},
    "ancestral noise": {"sampler_name": "Euler a", "eta": 0.7},
}


@pytest.mark.parametrize("name", SAMPLING)
def test_what_samplers_are_told(host, figures, name):
    assert_exact(host.watch(RAMP, plan={"strengths": RISING}, **SAMPLING[name]), figures)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler_name": "DDIM", "steps": 1},
        {"sampler_name": "PLMS", "steps": 1},
        {"page": "img2img", "denoising_strength": 0, "sampler_name": "DDIM"},
    ],
)
def test_a_sampler_that_evaluates_nothing(host, settings):
    if settings.get("page"):
        settings = {**settings, "init_images": [host.watch().as_input]}
    drawn = host.watch("<lora:words:te=0@0,0.8@1:unet=0@0,1@1>", **settings)
    assert drawn.seen["calls"] == []
    assert "Loom errors" not in drawn.infotext


@pytest.mark.parametrize("kind", ["Full", "Approx NN"])
def test_live_previews(host, figures, kind):
    shown = {"show_progress_every_n_steps": 1, "show_progress_type": kind}
    host.post("/sdapi/v1/options", shown)
    try:
        drawn = host.watch(RAMP, plan={"strengths": RISING})
    finally:
        usual = {"show_progress_every_n_steps": 10, "show_progress_type": "Approx NN"}
        host.post("/sdapi/v1/options", usual)
    assert_exact(drawn, figures)


@pytest.mark.parametrize("mishap", ["interrupt", "skip"])
def test_broken_off_before_the_first_evaluation_is_over(host, mishap):
    plain = host.watch()
    host.watch("<lora:words:te=0@0,0.8@1:unet=0@0,1@1>", at={0: mishap})
    after = host.watch()
    assert np.array_equal(after.pixels, plain.pixels)
    assert after.infotext == plain.infotext
