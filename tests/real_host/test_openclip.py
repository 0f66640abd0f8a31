"""OpenCLIP's text encoder in the real WebUI, whose attention computes q, k and v together, and the models that have it.

The references are as in test_evaluations.
"""

import pytest

from tests.real_host.openclip import make_openclip
from tests.real_host.pictures import CLEARLY, close
from tests.real_host.test_evaluations import EXACT, assert_exact, positions
from tests.real_host.test_left_behind import choose

TEXTS = ("a green ring", "a red square")
ENCODERS = {"sd2": ("sd2-te1",), "sdxl": ("sdxl-te1", "sdxl-te2")}


@pytest.fixture(scope="module")
def openclip(models, host):
    """The WebUI, which knows these models."""
    make_openclip(models)
    # Previews of XL want a model that the WebUI would load from elsewhere.
    host.post("/sdapi/v1/options", {"live_previews_enable": False})
    host.ask("add_architectures", folder=str(models / "openclip"))
    for list_ in ("checkpoints", "loras"):
        host.post(f"/sdapi/v1/refresh-{list_}", {})
    yield host
    host.post("/sdapi/v1/options", {"live_previews_enable": True})
    choose(host, "base")


@pytest.fixture
def model(openclip, request):
    name = request.param
    choose(openclip, name)
    return openclip


both = pytest.mark.parametrize(
    ("model", "name"), [("sd2", "sd2"), ("sdxl", "sdxl")], indirect=["model"]
)


def encoder_tags(name, strength):
    return "".join(f"<lora:{each}:te={strength}:unet=0@0,0@1>" for each in ENCODERS[name])


def encoded(host, name, tags, shares):
    """Draw, and compare the conditionings of every evaluation with those of encoders that hold the networks."""
    words = [dict.fromkeys(ENCODERS[name], share) for share in shares]
    return host.watch(
        plan={"words": words, "texts": TEXTS},
        steps=len(shares),
        prompt=f"{TEXTS[0]}{tags}",
        negative_prompt=TEXTS[1],
    )


@both
def test_a_constant_strength_of_the_text_encoders(model, figures, name):
    tags = encoder_tags(name, "0.4@0,0.4@1")
    assert_exact(encoded(model, name, tags, [0.4] * 3), figures)


@both
def test_a_curve_of_the_text_encoders(model, figures, name):
    shares = [0.8, 0.6, 0.4, 0.2]
    drawn = encoded(model, name, encoder_tags(name, "0.8@0,0.2@1"), shares)
    assert_exact(drawn, figures)
    static = encoded(model, name, encoder_tags(name, "0.8@0,0.8@1"), shares)
    off = max(call["difference"] for call in static.seen["calls"])
    assert figures("a constant to the curve", off) > 10 * EXACT


@both
def test_a_constant_strength_is_the_static_tag(model, figures, name):
    """The WebUI has a way of its own: it writes the four parts of an attention into the weights."""
    names = (*ENCODERS[name], f"{name}-unet")
    constant, static, off = (
        model.watch("".join(f"<lora:{each}:{values}>" for each in names))
        for values in ("0.4@0,0.4@1", "0.4", "0.38@0,0.38@1")
    )
    assert close(figures("constant to static", constant.differs(static)))
    assert not close(figures("5 % off to static", off.differs(static)))


@both
@pytest.mark.parametrize("sampler", ["Euler", "DPM++ SDE", "DDIM"])
def test_a_ramp_of_the_unet(model, figures, name, sampler):
    settings = {"sampler_name": sampler, "steps": 4}
    at = positions(model.watch(**settings), sampler)
    strengths = [{f"{name}-unet": 1 - 0.75 * share} for share in at]
    tag = f"<lora:{name}-unet:te=0:unet=1@0,0.25@1>"
    assert_exact(model.watch(tag, plan={"strengths": strengths}, **settings), figures)


@both
def test_a_schedule_of_everything_beside_a_static_tag(model, figures, name):
    """What the WebUI has written into the attention stays there: the picture is that of static tags alone."""
    first, *rest = ENCODERS[name]
    tags = "".join(f"<lora:{each}:0.5>" for each in (first, f"{name}-unet"))
    ours = "".join(f"<lora:{each}:0.5@0,0.5@1>" for each in (*rest, f"{name}-unet"))
    theirs = "".join(f"<lora:{each}:0.5>" for each in rest)
    drawn = model.watch(tags + ours)
    static = model.watch(f"<lora:{first}:0.5>{theirs}<lora:{name}-unet:1>")
    assert close(figures("ours to theirs", drawn.differs(static)))
    assert figures("none to theirs", model.watch().differs(static)[0]) > CLEARLY


@both
def test_nothing_stays_behind(model, name):
    plain = model.watch()
    model.watch(encoder_tags(name, "0.8@0,0.2@1") + f"<lora:{name}-unet:te=0:unet=0@0,1@1>")
    with pytest.raises(RuntimeError, match="out of memory"):
        model.watch(encoder_tags(name, "0.8@0,0.2@1"), at={2: "raise"})
    after = model.watch()
    assert (after.pixels == plain.pixels).all()
    assert after.infotext == plain.infotext
