"""The extension on the stand-in of the WebUI: what acts when, and that nothing stays behind.

Right values come from a twin of the model whose weights hold the networks, `baked` by the library's composition law.
"""

from copy import copy

import networks
import pytest
import torch
from modules import extra_networks, processing, script_callbacks, sd_models, sd_unet, shared
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from webui_host import agree, answers, evaluations

from lib_lora.hosts.a1111_gpu import HandOver

RAMP = "a fox <lora:a:te=1:unet=0@0,1@1>"


@pytest.mark.parametrize(
    ("sampler", "positions"),
    [
        ("Euler", [0, 1 / 3, 2 / 3, 1]),
        ("Heun", [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1]),
        ("DDIM", [0, 0.5, 1]),
    ],
)
def test_a_ramp_is_at_every_evaluation_the_model_with_that_much_baked_in(host, sampler, positions):
    host.draw(RAMP, sampler=sampler)
    seen = evaluations(host)
    assert len(seen) == len(positions)
    for evaluation, position in zip(seen, positions, strict=True):
        assert agree(evaluation[3], answers(host.baked(a=(position, 1)), evaluation))
        assert not agree(evaluation[3], answers(host.baked(a=(position + 0.05, 1)), evaluation))


@pytest.mark.parametrize(("steps", "last"), [(1, 0), (2, 1)])
def test_few_steps(host, steps, last):
    host.draw(RAMP, steps=steps)
    evaluation = evaluations(host)[-1]
    assert agree(evaluation[3], answers(host.baked(a=(last, 1)), evaluation))


def test_the_text_encoder_has_the_strength_that_the_tag_says(host):
    host.draw("a fox <lora:a:te=0.4:unet=0@0,1@1>")
    context = evaluations(host)[0][2]
    words = ["a fox ", ""]
    assert agree(context, host.baked(a=(0, 0.4)).cond_stage_model(words))
    assert not agree(context, host.baked(a=(0, 0.42)).cond_stage_model(words))


@pytest.mark.parametrize("steps", [4, 12])
def test_a_text_encoder_curve_is_encoded_for_every_evaluation(host, steps):
    host.draw("a fox <lora:a:te=0@0,1@1:unet=0>", steps=steps)
    for index, (_, _, context, _) in enumerate(evaluations(host)):
        twin = host.baked(a=(0, index / (steps - 1)))
        # This encoder is linear, so that a mixture of two is exact; a real one's is not.
        assert agree(context, twin.cond_stage_model(["a fox ", ""]))
        assert not agree(context, host.baked(a=(0, 1.05)).cond_stage_model(["a fox ", ""]))


def test_a_text_encoder_that_jumps_is_never_in_between(host):
    host.draw("a fox <lora:a:te=0@0,1@0.5|step:unet=0>", steps=12)
    off, on = (host.baked(a=(0, s)).cond_stage_model(["a fox ", ""]) for s in (0, 1))
    contexts = [context for _, _, context, _ in evaluations(host)]
    assert all(agree(context, off) for context in contexts[:6])
    assert all(agree(context, on) for context in contexts[6:])


def test_a_text_encoder_curve_of_the_hires_pass(host):
    host.draw("a fox <lora:a:te=1:unet=0:hrte=0@0,0.6@1>", enable_hr=True)
    seen = evaluations(host)
    for evaluation, strength in ((seen[0], 1), (seen[4], 0), (seen[7], 0.6)):
        words = host.baked(a=(0, strength)).cond_stage_model(["a fox "])
        assert agree(evaluation[2][:1], words)


def test_the_negative_prompt_has_a_strength_of_its_own(host):
    host.draw(
        "a fox <lora:a:te=0:unet=0@0,1@1:neg=0.3>", "a cat <lora:a:te=0:unet=0@0,1@1:neg=0.3>"
    )
    evaluation = evaluations(host)[-1]
    positive, negative = (answers(host.baked(a=(s, 0)), evaluation) for s in (1, 0.3))
    assert agree(evaluation[3], torch.cat([positive[:2], negative[2:]]))
    assert not agree(evaluation[3], positive)


def test_static_tags_are_the_hosts_alone(host):
    with_ours = host.draw("a fox <lora:a:0.8:0.5>")
    assert networks.loaded_networks == [("a", 0.8, 0.5)]
    assert host.model.hooks() == 0
    host.unload_extension()
    assert torch.equal(with_ours, host.draw("a fox <lora:a:0.8:0.5>"))


def test_a_schedule_never_reaches_the_hosts_loader(host):
    host.draw("a fox <lora:b:0.5><lora:a:0@0,1@1>")
    assert networks.loaded_networks == [("b", 0.5)]


def test_two_schedules_add_up(host):
    host.draw("a fox <lora:a:1@0,0@1><lora:b:te=0:unet=0@0,0.6@1>")
    evaluation = evaluations(host)[2]
    twin = host.baked(a=(1 / 3, 1), b=(0.4, 0))
    assert agree(evaluation[3], answers(twin, evaluation))


def test_the_hires_pass_has_strengths_of_its_own(host):
    host.draw("a fox <lora:a:1@0,1@1:hrte=0.5:hrunet=0@0,0.3@1>", enable_hr=True)
    first, *_, last = evaluations(host)
    assert agree(first[3], answers(host.baked(a=(1, 1)), first))
    assert agree(last[3], answers(host.baked(a=(0.3, 0)), last))
    words = host.baked(a=(0, 0.5)).cond_stage_model(["a fox "])
    assert agree(last[2][:1], words)


def test_every_batch_begins_anew(host):
    host.picture(RAMP, n_iter=2).draw()
    seen = evaluations(host)
    assert len(seen) == 8
    assert agree(seen[4][3], answers(host.baked(a=(0, 1)), seen[4]))
    assert agree(seen[7][3], answers(host.baked(a=(1, 1)), seen[7]))


def test_after_an_exception_in_the_unet_nothing_acts(host):
    clean = host.draw("a fox")
    unet = host.model.model.diffusion_model
    evaluations(host)

    def break_at_the_third(params):
        unet.broken = params.denoiser.step == 2

    script_callbacks.on_cfg_denoiser(break_at_the_third)
    with pytest.raises(ValueError, match="out of memory"):
        host.draw("a fox <lora:a:1@0,1@1>")
    unet.broken = False
    broken = evaluations(host)[1]
    assert agree(broken[3], answers(host.baked(a=(1, 1)), broken))  # it did act before
    assert torch.equal(answers(host.model, broken), answers(host.baked(), broken))
    script_callbacks.registered["cfg_denoiser"].remove(break_at_the_third)
    assert torch.equal(host.draw("a fox"), clean)
    assert host.model.hooks() == 0


def test_between_evaluations_nothing_acts(host):
    given = []

    def ask(params):
        x = torch.ones(2, 4, 6, 6, dtype=torch.float64)
        given.append(host.model.apply_model(x, torch.ones(2), torch.zeros(2, 8).double()))

    script_callbacks.on_cfg_after_cfg(ask)
    host.draw("a fox <lora:a:1@0,1@1>")
    host.draw("a fox")
    assert len(given) == 8
    assert all(torch.equal(one, given[-1]) for one in given)


def test_the_empty_text_of_a_model_is_encoded_without_us_and_the_session_goes_on(host):
    plain = processing.get_empty_cond(host.model)
    encoded = []
    script_callbacks.on_cfg_after_cfg(
        lambda params: encoded.append(processing.get_empty_cond(host.model))
    )
    host.draw("a fox <lora:a:1@0,1@1>")
    last = evaluations(host)[-1]
    assert all(torch.equal(one, plain) for one in encoded)
    assert agree(last[3], answers(host.baked(a=(1, 1)), last))


def test_a_model_that_changes_in_mid_picture_takes_the_hooks_along(host):
    before = host.model

    def change(params):
        if shared.sd_model is before and len(before.model.diffusion_model.seen) == 2:
            host.model = host.load_model("other", seed=7)

    script_callbacks.on_cfg_after_cfg(change)
    host.draw("a fox <lora:a:1@0,1@1>")
    assert before.hooks() == 0
    assert host.model.hooks() > 0
    plain = host.load_model("other", seed=7)
    for evaluation in evaluations(host):
        assert not agree(evaluation[3], answers(plain, evaluation))


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("<lora:a:0@0,1@x>", "column"),
        ("<lora:c:0@0,1@1>", "There is no LoRA 'c'"),
        ("<lora:a:high>", "a number or keyframes"),
    ],
)
def test_a_bad_tag_is_told_and_left_out(host, tag, told):
    clean = host.draw("a fox ")
    picture = host.picture(f"a fox {tag}")
    assert torch.equal(picture.draw()[0], clean)
    assert any(told in comment for comment in picture.comments)
    assert told in picture.extra_generation_params["Loom errors"]
    assert networks.loaded_networks == []


def test_schedules_in_the_negative_prompt_are_told(host):
    clean = host.draw("a fox ", negative_prompt="bad <lora:a:0@0,1@1>")
    picture = host.picture("a fox ", negative_prompt="bad <lora:a:0@0,1@1>")
    assert torch.equal(picture.draw()[0], clean)
    assert "neg=" in picture.extra_generation_params["Loom errors"]
    picture = host.picture("a fox ", negative_prompt="bad <lora:a:1>")
    picture.draw()
    assert "Loom errors" not in picture.extra_generation_params


def test_a_compiled_unet_is_told(host):
    sd_unet.current_unet = object()
    picture = host.picture(RAMP)
    picture.draw()
    assert "compiled" in picture.extra_generation_params["Loom errors"]
    assert host.model.hooks() == 0


def test_a_sampler_that_does_not_tell_its_levels_is_told(host, monkeypatch):
    def own_levels(sampler, p, steps):
        return torch.tensor([9.0, 5.0, 2.0, 1.0, 0.0])

    monkeypatch.setattr(KDiffusionSampler, "get_sigmas", own_levels)
    picture = host.picture(RAMP)
    picture.draw()
    assert "'Euler'" in picture.extra_generation_params["Loom errors"]
    assert script_callbacks.swallowed == []


def test_a_failure_of_ours_costs_the_schedule_and_not_the_picture(host, monkeypatch):
    clean = host.draw("a fox ")

    def fail(model, layers):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("lib_lora.hosts.a1111_picture.live_layers", fail)
    picture = host.picture("a fox <lora:a:0@0,1@1>")
    assert torch.equal(picture.draw()[0], clean)
    assert "a bug" in picture.extra_generation_params["Loom errors"]


def test_a_cached_conditioning_is_not_taken_for_another_strength(host):
    contexts = []
    for strength in (1, 0.5, 1):
        host.draw(f"a fox <lora:a:te={strength}:unet=0@0,0@1>")
        contexts.append(evaluations(host)[0][2])
    assert torch.equal(contexts[0], contexts[2])
    assert not agree(contexts[0], contexts[1])


def test_a_cached_conditioning_is_not_taken_once_a_missing_file_is_there(host):
    host.draw("a fox <lora:c:1@0,1@1>")
    without = evaluations(host)[0][2]
    networks.on_disk["c"] = networks.on_disk["a"]
    host.draw("a fox <lora:c:1@0,1@1>")
    assert not agree(evaluations(host)[0][2], without)


def test_the_hosts_cache_still_serves_the_same_picture(host):
    host.draw(RAMP)
    cached = processing.StableDiffusionProcessing.cached_c[1]
    host.draw(RAMP)
    assert processing.StableDiffusionProcessing.cached_c[1] is cached


def test_weights_can_be_kept_untouched(host):
    shared.opts.data["loom_keep_weights"] = True
    host.draw("a fox <lora:a:0.8:0.5>")
    assert networks.loaded_networks == []
    evaluation = evaluations(host)[0]
    assert agree(evaluation[3], answers(host.baked(a=(0.5, 0.8)), evaluation))


def test_hashes_of_both_kinds_are_in_the_infotext(host):
    picture = host.picture("a fox <lora:b:1><lora:a:0@0,1@1>")
    picture.draw()
    assert picture.extra_generation_params == {"Lora hashes": "b: hash-b, a: hash-a"}


def test_unloading_undoes_everything(host):
    host.draw(RAMP)
    assert host.model.hooks() > 0
    assert "loom_keep_weights" in shared.options_templates
    host.unload_extension()
    assert host.model.hooks() == 0
    assert shared.options_templates == {}
    for function in (
        extra_networks.parse_prompts,
        extra_networks.activate,
        processing.StableDiffusionProcessing.get_conds_with_caching,
        KDiffusionSampler.get_sigmas,
    ):
        assert function.__module__.startswith("modules.")
        assert not hasattr(function, "__wrapped__")
    host.load_extension()  # as "Reload UI" does; it is undone after the test once more


def test_what_is_told_of_one_picture_is_not_told_of_the_next(host):
    """As the X/Y/Z plot does: a copy for each cell, and all share what infotexts hold."""
    plot = host.picture("a fox")
    told = []
    for tags in ("<lora:a:high>", "<lora:a:te=0@0,1@1:unet=0>", "", "<lora:a:te=1:unet=1@0,0@1>"):
        cell = copy(plot)
        cell.all_prompts, cell.steps = [f"a fox {tags}"], 40
        cell.draw()
        told.append({"Loom errors", "Loom text encoder"} & cell.extra_generation_params.keys())
    assert told == [{"Loom errors"}, {"Loom text encoder"}, set(), set()]


def test_what_is_told_of_a_batch_is_not_told_of_the_next(host):
    picture = host.picture("a fox <lora:a:high>")
    picture.draw()
    assert "Loom errors" in picture.extra_generation_params
    picture.all_prompts = ["a fox <lora:a:0@0,1@1>"]
    picture.draw()
    assert "Loom errors" not in picture.extra_generation_params


def test_what_is_told_of_the_first_pass_stays_when_the_hires_pass_begins(host):
    picture = host.picture("a fox <lora:a:high>", enable_hr=True, hr_prompt="a fox")
    picture.draw()
    assert "a number or keyframes" in picture.extra_generation_params["Loom errors"]


def test_an_infotext_without_schedules_is_the_hosts_own(host):
    picture = host.picture("a fox <lora:b:1>")
    held = picture.extra_generation_params
    picture.draw()
    assert picture.extra_generation_params is held


def test_the_networks_of_a_picture_leave_the_device_when_it_is_lent(host, monkeypatch):
    monkeypatch.setattr(sd_models, "model_data", sd_models.ModelData())
    host.draw(RAMP)
    assert host.model.hooks() > 0
    hand_over = HandOver()
    hand_over.release(refuse=False)
    try:
        assert host.model.hooks() == 0
    finally:
        hand_over.restore()
    host.draw(RAMP)
    last = evaluations(host)[-1]
    assert agree(last[3], answers(host.baked(a=(1, 1)), last))


def test_schedules_in_the_negative_prompt_of_the_hires_pass_are_told(host):
    picture = host.picture("a fox ", enable_hr=True)
    picture.hr_negative_prompts = ["bad <lora:a:0@0,1@1>"]
    picture.draw()
    assert "neg=" in picture.extra_generation_params["Loom errors"]


def test_what_is_left_out_is_told_on_the_console_once(host, caplog):
    host.picture("a fox <lora:a:high><lora:b:0@0,1@1>", enable_hr=True).draw()
    assert [text for text in caplog.messages if "a number or keyframes" in text] == [
        "<lora:a:high> is left out: column 15: expected a number or keyframes such as 0@0,1@0.5."
    ]
