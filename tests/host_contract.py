"""What LoRA Loom relies on in the AUTOMATIC1111 WebUI: one assertion per behaviour, with the file and line of v1.10.1 that has it.

It binds the stand-in, on which the other tests of `hosts/a1111` run, to the WebUI.
"""

import networks
import pytest
import torch
from modules import extra_networks, patches, processing, script_callbacks
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from webui_host import Host


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    yield host
    host.forget()


@pytest.fixture
def evaluations():
    seen = []
    script_callbacks.on_cfg_denoiser(seen.append)
    return seen


def test_every_tag_leaves_its_prompt_and_those_of_the_first_count():
    # modules/extra_networks.py:194
    texts, data = extra_networks.parse_prompts(["a <lora:x:1>", "b <lora:y:1>"])
    assert (texts, [params.items for params in data["lora"]]) == (["a ", "b "], [["x", "1"]])


def test_what_is_asked_of_a_network_is_compared_by_its_items():
    # modules/extra_networks.py:44
    one, other = (extra_networks.ExtraNetworkParams(["x", "1"]) for _ in range(2))
    other.more = 1
    assert one == other


def test_a_network_that_is_not_asked_for_is_activated_with_nothing(host):
    # modules/extra_networks.py:140
    networks.loaded_networks.append(("x", 1.0))
    extra_networks.activate(host.picture("a"), {})
    assert networks.loaded_networks == []


def test_a_name_that_no_network_has_is_passed_over(host):
    # modules/extra_networks.py:118
    extra_networks.activate(host.picture("a"), {"LoRA Loom": []})


def test_a_name_of_a_tag_is_made_of_word_characters():
    # modules/extra_networks.py:175
    assert extra_networks.parse_prompts(["<LoRA Loom:x>"]) == (["<LoRA Loom:x>"], {})


def test_a_function_is_replaced_once_per_owner():
    # modules/patches.py:22
    patches.patch("me", extra_networks, "activate", extra_networks.activate)
    with pytest.raises(RuntimeError):
        patches.patch("me", extra_networks, "activate", extra_networks.activate)
    patches.undo("me", extra_networks, "activate")


def test_what_a_callback_raises_is_swallowed(host):
    # modules/script_callbacks.py:334
    script_callbacks.on_cfg_denoiser(lambda params: 1 / 0)
    host.draw("a")
    assert len(script_callbacks.swallowed) == 4


def test_the_empty_text_of_a_model_is_encoded_for_a_picture_without_prompts(host, monkeypatch):
    # modules/sd_models.py:722
    activated = []
    monkeypatch.setattr(extra_networks, "activate", lambda p, data: activated.append(p))
    processing.get_empty_cond(host.model)
    assert not activated[0].prompts


def test_conditionings_are_cached_by_what_is_asked_of_networks(host):
    # modules/processing.py:482
    encoded = []
    host.model.cond_stage_model.register_forward_hook(lambda *call: encoded.append(call))
    for tag in ("<lora:x:1>", "<lora:x:1>", "<lora:x:0.5>"):
        host.draw(f"a {tag}")
    assert len(encoded) == 4


def test_the_hires_pass_activates_and_encodes_with_its_own_steps(host, monkeypatch):
    # modules/processing.py:1368, 1437, 1510
    order = []
    original = processing.StableDiffusionProcessing.get_conds_with_caching

    def encode(p, function, prompts, steps, caches, data, hires_steps=None):
        order.append(("encode", p.is_hr_pass, hires_steps))
        return original(p, function, prompts, steps, caches, data, hires_steps)

    monkeypatch.setattr(processing.StableDiffusionProcessing, "get_conds_with_caching", encode)
    monkeypatch.setattr(
        extra_networks, "activate", lambda p, data: order.append(("activate", p.is_hr_pass))
    )
    host.draw("a", enable_hr=True)
    base, hires = order[:3], order[3:]
    assert base == [("activate", False), ("encode", False, None), ("encode", False, None)]
    assert hires == [("activate", True), ("encode", True, 4)]


def test_the_callback_sees_every_row_of_both_conditionings(host, evaluations):
    # modules/sd_samplers_cfg_denoiser.py:203, 212
    host.draw("a", "b")
    assert [len(params.x) for params in evaluations] == [4] * 4
    assert all(len(set(params.sigma.tolist())) == 1 for params in evaluations)


def test_the_denoiser_knows_its_picture_and_its_sampler(host, evaluations):
    # modules/sd_samplers_common.py:288, modules/sd_samplers_cfg_denoiser.py:57
    picture = host.picture("a")
    picture.draw()
    assert {params.denoiser.p for params in evaluations} == {picture}
    assert isinstance(evaluations[0].denoiser.sampler, KDiffusionSampler)


def test_nothing_is_called_after_an_evaluation_that_raised(host):
    # modules/sd_samplers_cfg_denoiser.py:307
    after = []
    script_callbacks.on_cfg_after_cfg(after.append)
    host.model.model.diffusion_model.broken = True
    with pytest.raises(ValueError, match="out of memory"):
        host.draw("a")
    assert after == []


def test_sigmas_go_down_to_a_zero_that_is_not_evaluated(host, evaluations):
    # modules/sd_samplers_kdiffusion.py:79, 230
    host.draw("a", steps=3)
    built = KDiffusionSampler("Euler").get_sigmas(None, 3)
    assert [params.sigma[0].item() for params in evaluations] == pytest.approx(built[:-1].tolist())
    assert (built[-1], evaluations[0].denoiser.steps) == (0, 3)


def test_from_a_picture_the_end_of_a_longer_list_is_walked(host, evaluations):
    # modules/sd_samplers_kdiffusion.py:138, 174, 184
    host.draw("a", enable_hr=True)
    hires = evaluations[4:]
    built = KDiffusionSampler("Euler").get_sigmas(None, 8)
    assert [params.sigma[0].item() for params in hires] == pytest.approx(built[4:-1].tolist())
    assert hires[0].denoiser.steps == 4
    assert hires[0].denoiser.init_latent is not None
    assert evaluations[0].denoiser.init_latent is None


def test_a_second_order_sampler_evaluates_where_it_goes_to_as_well(host, evaluations):
    # k-diffusion's sampling.py, sample_heun
    host.draw("a", sampler="Heun", steps=2)
    first, second = KDiffusionSampler("Heun").get_sigmas(None, 2)[:-1].tolist()
    told = [params.sigma[0].item() for params in evaluations]
    assert told == pytest.approx([first, second, second])


def test_timesteps_go_up_and_the_smallest_is_not_evaluated(host, evaluations):
    # modules/sd_samplers_timesteps.py:94, modules/sd_samplers_timesteps_impl.py:22
    host.draw("a", sampler="DDIM")
    built = CompVisSampler("DDIM").get_timesteps(None, 4).tolist()
    assert built == sorted(built)
    assert [params.sigma[0].item() for params in evaluations] == built[:0:-1]


def test_hooks_of_an_instance_see_a_forward_that_raised(host):
    # torch 2.1.2, nn/modules/module.py:1622: called once more, without an output
    outputs = []
    unet = host.model.model.diffusion_model
    unet.register_forward_hook(lambda *call: outputs.append(call[2]), always_call=True)
    unet.broken = True
    with pytest.raises(ValueError, match="out of memory"):
        unet(torch.zeros(1, 4, 6, 6).double(), torch.zeros(1), torch.zeros(1, 8).double())
    assert outputs == [None]
