"""Text encoder curves: which strengths are encoded for a pass, how the others are mixed and how far off that is told to be."""

import re
from itertools import pairwise

import pytest
import torch
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from webui_host import agree, evaluations

WORDS = ("a fox ", "")


def words_of(model, *texts):
    return model.cond_stage_model(list(texts))


def contexts(host, tag, **settings):
    host.draw(f"a fox {tag}", **settings)
    return [evaluation[2] for evaluation in evaluations(host)]


def differs(found, host, strength):
    """Return the largest difference from the true conditioning, as a share of its largest element; words: positive, negative."""
    true = words_of(host.baked(a=(0, strength)), *WORDS)
    return max(
        float((one - other).abs().max() / other.abs().max())
        for one, other in zip(found, true, strict=True)
    )


@pytest.mark.parametrize(("sampler", "steps"), [("Euler", 8), ("DDIM", 9), ("Heun", 5)])
def test_few_strengths_are_each_encoded(make_host, sampler, steps):
    """Nothing is mixed: this encoder is not linear, so that a mixture would be off."""
    host = make_host("sd2")
    found = contexts(host, "<lora:a:te=0@0,1@1:unet=0>", sampler=sampler, steps=steps)
    whole = found if sampler != "Heun" else [found[0], *found[1::2]]
    for index, context in enumerate(whole):
        assert differs(context, host, index / (len(whole) - 1)) < 1e-9
    assert differs(whole[1], host, 1.05 / (len(whole) - 1)) > 1e-4


@pytest.mark.parametrize(
    "curve", ["0@0,1@1", "0@0,1@0.1,0@1", "1@0,0@0.5|smooth,0.3@1", "0.3@0,1@0.4,0@0.5,0.9@1"]
)
def test_many_strengths_are_mixed_along_the_strength_and_the_infotext_tells_how_far_off(
    make_host, curve
):
    host = make_host("sd2")
    picture = host.picture(f"a fox <lora:a:te={curve}:unet=0>", steps=40)
    picture.draw()
    told = picture.extra_generation_params["Loom text encoder"]
    largest = float(re.search(r"at most ([0-9.]+)% off", told)[1]) / 100
    seen = evaluations(host)
    host.draw(f"a fox <lora:a:te=0:unet={curve}>", steps=40)
    off = []
    for index, evaluation in enumerate(seen):
        strength = strength_at(curve, index / 39)
        off.append(differs(evaluation[2], host, strength))
    assert 0 < largest < 0.05
    assert max(off) <= 1.3 * largest + 1e-4


def strength_at(curve, progress):
    """Return the strength of a curve, by hand."""
    frames = [frame.split("@") for frame in curve.split(",")]
    frames = [(float(s), *p.split("|")) for s, p in frames]
    for (before, start, *_), (after, end, *easing) in pairwise(frames):
        if float(start) <= progress <= float(end):
            share = (progress - float(start)) / (float(end) - float(start))
            share = share * share * (3 - 2 * share) if easing else share
            return before + (after - before) * share
    raise AssertionError(progress)


def test_two_curves_are_mixed_along_the_pass(make_host):
    host = make_host("sd2")
    tags = "<lora:a:te=0@0,1@1:unet=0><lora:b:te=1@0,0@0.5,1@1:unet=0>"
    picture = host.picture(f"a fox {tags}", steps=36)
    picture.draw()
    assert "Loom text encoder" in picture.extra_generation_params
    seen = evaluations(host)
    for index in (0, 5, 10, 35):  # a knot is at every fifth of 35
        progress = index / 35
        twin = host.baked(a=(0, progress), b=(0, abs(2 * progress - 1)))
        assert agree(seen[index][2], words_of(twin, *WORDS))


def test_a_curve_over_sigma_follows_the_noise_of_the_pass(make_host):
    """The stand-in's sigmas are even in their logarithm from 10 to 0.1, as the keyframes are."""
    host = make_host("sd2")
    found = contexts(host, "<lora:a:te=0@s10,1@s0.1:unet=0>", steps=5)
    for index, context in enumerate(found):
        assert differs(context, host, index / 4) < 1e-6
    assert differs(found[2], host, 0.525) > 1e-4


def test_a_curve_over_sigma_of_the_hires_pass_and_of_img2img(make_host):
    host = make_host("sd2")
    found = contexts(host, "<lora:a:te=0:unet=0:hrte=0@s10,1@s0.1>", enable_hr=True)
    sigmas = KDiffusionSampler("Euler").get_sigmas(None, 8)[4:-1]
    for context, sigma in zip(found[4:], sigmas.tolist(), strict=True):
        strength = (1 - torch.tensor(sigma).log10().item()) / 2
        assert differs(context, host, strength) < 1e-6
    found = contexts(host, "<lora:a:te=0@s10,1@s0.1:unet=0>", init_images=["x"])
    sigmas = KDiffusionSampler("Euler").get_sigmas(None, 4)[1:-1]
    assert len(found) == len(sigmas)
    for context, sigma in zip(found, sigmas.tolist(), strict=True):
        strength = (1 - torch.tensor(sigma).log10().item()) / 2
        assert differs(context, host, strength) < 1e-6


def test_looking_ahead_tells_the_infotext_nothing(host, monkeypatch):
    original, asked = KDiffusionSampler.get_sigmas, []

    def tell(sampler, p, steps):
        p.extra_generation_params["Schedule type"] = "Karras"
        asked.append(
            (p is picture, p.is_hr_pass, "Schedule type" in picture.extra_generation_params)
        )
        return original(sampler, p, steps)

    monkeypatch.setattr(KDiffusionSampler, "get_sigmas", tell)
    picture = host.picture("a fox <lora:a:te=0@0,1@1:unet=0>", enable_hr=True)
    picture.draw()
    ahead, own = (False, False, False), (True, False, True)
    first = asked.index(own)
    assert set(asked[:first]) == {ahead}
    assert {hires for _, hires, _ in asked[first + 1 :]} == {True}


def test_a_batch_that_follows_does_not_encode_anew(host):
    encoded = []
    host.model.cond_stage_model.register_forward_hook(lambda *call: encoded.append(call[1]))
    host.picture("a fox <lora:a:te=0@0,1@1:unet=0>").draw()
    once = len(encoded)
    host.picture("a cat <lora:a:te=0@0,1@1:unet=0>", n_iter=3).draw()
    assert once == 8  # four strengths of two prompts
    assert len(encoded) < 3 * once


def test_constant_strengths_look_at_no_sampler(host, monkeypatch):
    def none(name, model):
        raise AssertionError

    monkeypatch.setattr("modules.sd_samplers.create_sampler", none)
    picture = host.picture("a fox <lora:a:te=0.4:unet=0@0,1@1>")
    picture.draw()
    assert "Loom errors" not in picture.extra_generation_params


def test_a_pass_that_starts_at_another_noise_level_is_not_taken_for_the_cached_one(make_host):
    """The same prompt and steps: img2img goes on in the middle of the curve at which txt2img starts."""
    host = make_host("sd2")
    tag, starts = "<lora:a:te=0@s10,1@s0.1:unet=0>", []
    for settings in ({}, {"init_images": ["x"]}, {}):
        found = contexts(host, tag, steps=4, **settings)
        sigmas = KDiffusionSampler("Euler").get_sigmas(None, 4)[4 - len(found) : -1]
        strengths = [(1 - torch.tensor(sigma).log10().item()) / 2 for sigma in sigmas.tolist()]
        assert differs(found[0], host, strengths[0]) < 1e-6
        assert differs(found[-1], host, strengths[-1]) < 1e-6
        starts.append(strengths[0])
    assert starts[0] == starts[2] == 0
    assert starts[1] > 0.2


def test_what_was_encoded_without_a_schedule_is_not_taken_for_it(make_host, monkeypatch):
    """A sampler that tells no levels leaves the schedule out; with the next one it acts."""
    host = make_host("sd2")
    tag = "<lora:a:te=0.8@0,0.2@1:unet=0>"
    with monkeypatch.context() as patch:
        patch.setattr(KDiffusionSampler, "get_sigmas", lambda *_: torch.tensor([9.0, 3.0, 1.0, 0]))
        assert differs(contexts(host, tag)[0], host, 0) < 1e-9
    assert differs(contexts(host, tag)[0], host, 0.8) < 1e-9
