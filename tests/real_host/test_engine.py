"""What networks act on and beside, in the real WebUI: models with a mask, words inside of files, the WebUI's own way of adding networks."""

import contextlib

import numpy as np
import pytest

from tests.real_host.models import WORD
from tests.real_host.pictures import PROMPT, close
from tests.real_host.test_evaluations import assert_exact
from tests.real_host.test_left_behind import choose

RAMP = "<lora:one:te=1:unet=0@0,1@1>"
SHARES = (0, 0.5, 1)


@pytest.fixture
def option(host):
    """Return a function that sets options until the end of the test."""
    stack = contextlib.ExitStack()

    def choice(name, value, default):
        host.post("/sdapi/v1/options", {name: value})
        stack.callback(host.post, "/sdapi/v1/options", {name: default})

    with stack:
        yield choice


def test_a_model_that_sees_a_mask(host, figures):
    choose(host, "inpainting")
    try:
        plan = {"strengths": [{"one": share} for share in SHARES]}
        drawn = host.watch(RAMP, plan=plan, steps=3)
        constant = host.watch("<lora:one:1@0,1@1>", steps=3)
        static = host.watch("<lora:one:1>", steps=3)
    finally:
        choose(host, "base")
    assert_exact(drawn, figures)
    assert close(figures("constant to static", constant.differs(static)))


def test_functional_networks(host, figures, option):
    """The WebUI's own networks act beside the weights as well then."""
    option("lora_functional", True, False)
    constant, static = host.watch("<lora:one:1@0,1@1>"), host.watch("<lora:one:1>")
    assert close(figures("constant to static", constant.differs(static)))
    assert figures("none to static", host.watch().differs(static)[0]) > 1
    both = host.watch("<lora:two:0.7><lora:one:1@0,1@1>")
    assert close(figures("both", both.differs(host.watch("<lora:two:0.7><lora:one:1>"))))


@pytest.mark.parametrize("name", ["dora", "oft", "ia3", "glora"])
def test_a_static_tag_beside_a_network_that_is_made_from_the_weights(host, figures, name):
    """Both are made from the weights as they are in the file, whatever the other adds."""
    plan = {"strengths": [{"two": 1, name: share} for share in SHARES]}
    drawn = host.watch(f"<lora:two:1><lora:{name}:te=1:unet=0@0,1@1>", plan=plan, steps=3)
    assert_exact(drawn, figures)


def test_weights_that_are_kept_untouched(host, figures, option):
    """Every tag acts beside the weights, of which the WebUI makes no copy."""
    choose(host, "other")
    choose(host, "base")
    option("loom_keep_weights", True, False)
    plan = {"strengths": {"one": 0.8, "two": 0.5}}
    drawn = host.watch("<lora:one:0.8><lora:two:1:0.5>", plan=plan, steps=3)
    assert_exact(drawn, figures)
    assert figures("copies", host.ask("copies")) == 0
    option("loom_keep_weights", False, False)
    host.watch("<lora:one:0.8>")
    assert figures("copies in stock", host.ask("copies")) > 100


def test_a_word_inside_of_a_file(host, figures):
    words = f"{PROMPT} {WORD}"
    constant = host.watch(prompt=f"{words} <lora:bundled:te=1:unet=1@0,1@1>")
    static = host.watch(prompt=f"{words} <lora:bundled:1>")
    assert close(figures("constant to static", constant.differs(static)))
    without = host.watch(prompt=f"{words} <lora:one:te=1:unet=1@0,1@1>")
    assert figures("without the word", without.differs(static)[0]) > 0.1


def test_a_network_that_an_option_adds(host, figures, option):
    option("sd_lora", "two", "None")
    drawn = host.watch("<lora:one:1@0,1@1>")
    static = host.watch("<lora:one:1>")
    assert "<lora:two:1" in drawn.infotext
    assert close(figures("constant to static", drawn.differs(static)))
    option("sd_lora", "None", "None")
    assert figures("without it", host.watch("<lora:one:1>").differs(static)[0]) > 1


def test_the_other_name_of_a_tag(host):
    ours, theirs = host.watch("<lyco:one:1>"), host.watch("<lora:one:1>")
    assert np.array_equal(ours.pixels, theirs.pixels)
