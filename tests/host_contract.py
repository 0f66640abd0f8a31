"""What LoRA Loom relies on in the AUTOMATIC1111 WebUI: one assertion per behaviour, with the file and line of v1.10.1 that has it.

It binds the stand-in, on which the other tests of `hosts/a1111` run, to the WebUI: pytest runs it on the first, `real_host/inside` in
the second, where pytest is not. `host` is what `webui_host.Host` is on the stand-in.
"""

from unittest.mock import patch

import networks
import torch
from modules import (
    extra_networks,
    patches,
    processing,
    script_callbacks,
    sd_hijack,
    sd_samplers,
    shared,
)
from modules.sd_samplers_kdiffusion import KDiffusionSampler


def evaluations():
    """Return a list to which every evaluation adds what its callback is given."""
    seen = []
    script_callbacks.on_cfg_denoiser(seen.append)
    return seen


def levels(seen):
    return [params.sigma[0].item() for params in seen]


def near(one, other):
    return len(one) == len(other) and torch.allclose(torch.tensor(one), torch.tensor(other))


def error_of(call):
    """Return what a call raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


def test_every_tag_leaves_its_prompt_and_those_of_the_first_count(host):
    # modules/extra_networks.py:194
    texts, data = extra_networks.parse_prompts(["a <lora:x:1>", "b <lora:y:1>"])
    assert (texts, [params.items for params in data["lora"]]) == (["a ", "b "], [["x", "1"]])


def test_what_is_asked_of_a_network_is_compared_by_its_items(host):
    # modules/extra_networks.py:44
    one, other = (extra_networks.ExtraNetworkParams(["x", "1"]) for _ in range(2))
    other.more = 1
    assert one == other


def test_a_network_that_is_not_asked_for_is_activated_with_nothing(host):
    # modules/extra_networks.py:140
    asked = [extra_networks.ExtraNetworkParams([next(iter(host.networks)), "1"])]
    extra_networks.activate(host.picture("a"), {"lora": asked})
    assert len(networks.loaded_networks) == 1
    extra_networks.activate(host.picture("a"), {})
    assert networks.loaded_networks == []


def test_a_name_that_no_network_has_is_passed_over(host):
    # modules/extra_networks.py:118
    extra_networks.activate(host.picture("a"), {"LoRA Loom": []})


def test_a_name_of_a_tag_is_made_of_word_characters(host):
    # modules/extra_networks.py:175
    assert extra_networks.parse_prompts(["<LoRA Loom:x>"]) == (["<LoRA Loom:x>"], {})


def test_a_function_is_replaced_once_per_owner(host):
    # modules/patches.py:22
    before = extra_networks.activate
    patches.patch("me", extra_networks, "activate", before)
    again = error_of(lambda: patches.patch("me", extra_networks, "activate", before))
    assert isinstance(again, RuntimeError)
    patches.undo("me", extra_networks, "activate")
    assert extra_networks.activate == before


def test_a_callback_can_be_registered_with_the_file_that_it_comes_from(host):
    # modules/script_callbacks.py:127
    heard = []
    callbacks = script_callbacks.callback_map["callbacks_cfg_denoiser"]
    script_callbacks.add_callback(
        callbacks, heard.append, category="cfg_denoiser", filename=__file__
    )
    seen = evaluations()
    host.draw("a fox")
    assert len(heard) == len(seen) > 0


def test_what_a_callback_raises_is_swallowed(host):
    # modules/script_callbacks.py:334
    script_callbacks.on_cfg_denoiser(lambda params: 1 / 0)
    seen = evaluations()
    host.draw("a")
    assert len(seen) == 4


def test_the_empty_text_of_a_model_is_encoded_for_a_picture_without_prompts(host):
    # modules/sd_models.py:722
    activated = []
    with patch.object(extra_networks, "activate", lambda p, data: activated.append(p)):
        host.encode_nothing()
    assert not activated[0].prompts


def test_conditionings_are_cached_by_what_is_asked_of_networks(host):
    # modules/processing.py:482
    encoded = []
    handle = host.model.cond_stage_model.register_forward_hook(lambda *call: encoded.append(call))
    name = next(iter(host.networks))
    for strength in ("1", "1", "0.5"):
        host.draw(f"a <lora:{name}:{strength}>")
    handle.remove()
    assert len(encoded) == 4


def test_the_hires_pass_activates_and_encodes_with_its_own_steps(host):
    # modules/processing.py:1368, 1437, 1510
    order = []
    kind = processing.StableDiffusionProcessing
    original = kind.get_conds_with_caching

    def encode(p, function, prompts, steps, caches, data, hires_steps=None):
        order.append(("encode", p.is_hr_pass, hires_steps))
        return original(p, function, prompts, steps, caches, data, hires_steps)

    def activate(p, data):
        order.append(("activate", p.is_hr_pass))

    with (
        patch.object(kind, "get_conds_with_caching", encode),
        patch.object(extra_networks, "activate", activate),
    ):
        host.draw("a", enable_hr=True)
    base, (first, *others) = order[:3], order[3:]
    assert base == [("activate", False), ("encode", False, None), ("encode", False, None)]
    assert first == ("activate", True)
    assert set(others) == {("encode", True, 4)}


def test_the_callback_sees_every_row_of_both_conditionings(host):
    # modules/sd_samplers_cfg_denoiser.py:203, 212
    seen = evaluations()
    host.draw("a", "b")
    assert [len(params.x) for params in seen] == [4] * 4
    assert all(len(set(params.sigma.tolist())) == 1 for params in seen)


def test_the_denoiser_knows_its_picture_and_its_sampler(host):
    # modules/sd_samplers_common.py:288, modules/sd_samplers_cfg_denoiser.py:57
    seen, picture = evaluations(), host.picture("a")
    host.make(picture)
    assert all(params.denoiser.p is picture for params in seen)
    assert isinstance(seen[0].denoiser.sampler, KDiffusionSampler)


def test_nothing_is_called_after_an_evaluation_that_raised(host):
    # modules/sd_samplers_cfg_denoiser.py:307
    after = []
    script_callbacks.on_cfg_after_cfg(after.append)
    host.break_unet()
    assert "out of memory" in str(error_of(lambda: host.draw("a")))
    assert after == []


def test_sigmas_go_down_to_a_zero_that_is_not_evaluated(host):
    # modules/sd_samplers_kdiffusion.py:79, 230
    seen = evaluations()
    host.draw("a", steps=3)
    built = host.sampler("Euler").get_sigmas(host.picture("a"), 3).tolist()
    assert near(levels(seen), built[:-1])
    assert (built[-1], seen[0].denoiser.steps) == (0, 3)


def test_from_a_picture_the_end_of_a_longer_list_is_walked(host):
    # modules/sd_samplers_kdiffusion.py:138, 174, 184
    seen = evaluations()
    host.draw("a", enable_hr=True)
    base, hires = seen[:4], seen[4:]
    built = host.sampler("Euler").get_sigmas(host.picture("a"), 8).tolist()
    assert near(levels(hires), built[4:-1])
    assert hires[0].denoiser.steps == 4
    assert hires[0].denoiser.init_latent is not None
    assert base[0].denoiser.init_latent is None


def test_a_second_order_sampler_evaluates_where_it_goes_to_as_well(host):
    # k-diffusion's sampling.py, sample_heun
    seen = evaluations()
    host.draw("a", sampler="Heun", steps=2)
    first, second = host.sampler("Heun").get_sigmas(host.picture("a"), 2)[:-1].tolist()
    assert near(levels(seen), [first, second, second])


def test_timesteps_go_up_and_the_smallest_is_not_evaluated(host):
    # modules/sd_samplers_timesteps.py:94, modules/sd_samplers_timesteps_impl.py:22
    seen = evaluations()
    host.draw("a", sampler="DDIM")
    built = host.sampler("DDIM").get_timesteps(host.picture("a"), 4).tolist()
    assert built == sorted(built)
    assert levels(seen) == built[:0:-1]


def test_hooks_of_an_instance_see_a_forward_that_raised(host):
    # torch 2.1.2, nn/modules/module.py:1622: called once more, without an output
    outputs = []
    handle = host.model.model.diffusion_model.register_forward_hook(
        lambda *call: outputs.append(call[2]), always_call=True
    )
    host.break_unet()
    assert "out of memory" in str(error_of(lambda: host.draw("a")))
    handle.remove()
    assert outputs == [None]


def test_an_alias_names_the_same_networks(host):
    # extensions-builtin/Lora/scripts/lora_script.py:24, modules/extra_networks.py:114
    asked = [extra_networks.ExtraNetworkParams([next(iter(host.networks)), "1"])]
    extra_networks.activate(host.picture("a"), {"lyco": asked})
    assert len(networks.loaded_networks) == 1
    extra_networks.activate(host.picture("a"), {})


def test_an_option_adds_a_network_that_no_tag_names(host):
    # extensions-builtin/Lora/extra_networks_lora.py:19
    networks.list_available_networks()
    one, other = list(host.networks)[:2]
    pictures = [host.picture(f"a <lora:{name}:1>") for name in (one, other)]
    with patch.dict(shared.opts.data, sd_lora=other):
        host.make(pictures[0])
        assert len(networks.loaded_networks) == 2
        host.make(pictures[1])
        assert len(networks.loaded_networks) == 1
    assert pictures[0].all_prompts[0].startswith(f"a <lora:{one}:1><lora:{other}:")
    assert list(pictures[1].all_prompts) == [f"a <lora:{other}:1>"]
    extra_networks.activate(host.picture("a"), {})


def test_comments_of_an_activation_are_told_below_the_picture(host):
    # modules/processing.py:979
    original, picture = extra_networks.activate, host.picture("a")

    def activate(p, data):
        sd_hijack.model_hijack.comments.append("Lora not found: x")
        original(p, data)

    with patch.object(extra_networks, "activate", activate):
        host.make(picture)
    assert "Lora not found: x" in picture.comments


def test_a_sampler_can_be_made_before_its_pass(host):
    # modules/sd_samplers.py:34, modules/sd_samplers_kdiffusion.py:79
    seen = evaluations()
    ahead = sd_samplers.create_sampler("Euler", host.model).get_sigmas(host.picture("a"), 4)
    host.draw("a")
    assert levels(seen) == ahead[:-1].tolist()
