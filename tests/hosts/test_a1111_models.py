"""Other models than SD1's, and models that change: which networks act on what, and where a pass stands.

Right values come from a twin of the model whose weights hold the networks.
"""

import networks
import pytest
import torch
from modules import script_callbacks, sd_unet, shared
from webui_host import LAYERS, agree, answers, evaluations, take

from lib_lora.networks.compose import DORA_TYPES
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.lora import LORA

DORA = DORA_TYPES[0]


def refiner(host, kind=None):
    """Return settings whose picture goes on with another model after half of its steps."""

    def load():
        host.other = host.load_model("other", seed=7, kind=kind)

    return {"refiner": load}


def words_of(model, *texts):
    return model.cond_stage_model(list(texts))


def test_fused_attention_of_the_text_encoder_has_the_strength_that_the_tag_says(make_host):
    host = make_host("sd2")
    picture = host.picture("a fox <lora:a:te=0.4:unet=0@0,1@1>")
    picture.draw()
    first, *_, last = evaluations(host)
    twin = host.baked(a=(1, 0.4))
    assert agree(first[2], words_of(twin, "a fox ", ""))
    assert agree(last[3], answers(twin, last))
    assert not agree(first[2], words_of(host.baked(a=(1, 0.42)), "a fox ", ""))
    assert any("attn" in key for key in host.model.checkpoint())
    assert "Loom errors" not in picture.extra_generation_params


def test_fused_attention_keeps_nothing_of_it(make_host):
    host = make_host("sd2")
    clean = host.draw("a fox")
    kept = {key: tensor.clone() for key, tensor in host.model.checkpoint().items()}
    host.draw("a fox <lora:a:1@0,0.5@1>")
    assert all(torch.equal(tensor, kept[key]) for key, tensor in host.model.checkpoint().items())
    assert torch.equal(host.draw("a fox"), clean)
    assert host.model.hooks() == 0


def test_fused_attention_holds_what_the_host_writes_into_it(make_host):
    host = make_host("sd2")
    module = "cond_stage_model.wrapped.model.transformer.resblocks.0.attn"
    draw = torch.Generator().manual_seed(4)
    written = torch.randn(24, 8, generator=draw, dtype=torch.float64)
    networks.deltas["b"] = {module: written}
    host.draw("a fox <lora:b:0.5><lora:a:te=0.4:unet=0@0,1@1>")
    context = evaluations(host)[0][2]
    twin = host.baked(a=(0, 0.4))
    plain = words_of(twin, "a fox ", "")
    twin.cond_stage_model.wrapped.model.transformer.resblocks[0].attn.in_proj_weight += (
        0.5 * written
    )
    assert agree(context, words_of(twin, "a fox ", ""))
    assert not agree(context, plain)


def test_a_refiner_takes_over_in_mid_pass(host):
    host.draw("a fox <lora:a:0.8@0,0.2@1:unet=0@0,1@1>", **refiner(host))
    before, after = take(host.model), take(host.other)
    assert (len(before), len(after)) == (2, 2)
    assert host.model.hooks() == 0
    for index, evaluation in enumerate([*before, *after]):
        name = "base" if index < 2 else "other"
        strengths = (index / 3, 0.8 - 0.2 * index)
        twin = host.baked(name, a=strengths)
        assert agree(evaluation[3], answers(twin, evaluation))
        assert agree(evaluation[2], words_of(twin, "a fox ", ""))
        off = host.baked(name, a=(strengths[0] + 0.05, strengths[1] * 1.05))
        assert not agree(evaluation[3], answers(off, evaluation))
        assert not agree(evaluation[2], words_of(off, "a fox ", ""))


def test_a_refiner_without_the_layers_goes_on_without_the_networks_and_this_is_told(make_host):
    host = make_host("sd2")
    host.add_network("t", 3, layers=[layer for layer in LAYERS if "self_attn" in layer])
    picture = host.picture("a fox <lora:t:1@0,0.5@1>", **refiner(host, "sd1"))
    picture.draw()
    before, after = take(host.model), take(host.other)
    assert agree(before[0][2], words_of(host.baked(t=(0, 1)), "a fox ", ""))
    assert all(agree(seen[2], words_of(host.other, "a fox ", "")) for seen in after)
    assert "'t' is left out" in picture.extra_generation_params["Loom errors"]
    assert script_callbacks.swallowed == []


def test_after_a_refiner_the_next_batch_begins_with_its_own_model(host):
    host.picture("a fox <lora:a:0@0,1@1>", n_iter=2, **refiner(host)).draw()
    seen = take(host.model)
    assert len(seen) == 4
    assert agree(seen[2][3], answers(host.baked(a=(0, 0)), seen[2]))
    assert agree(seen[3][3], answers(host.baked(a=(1 / 3, 1 / 3)), seen[3]))


def test_a_refiner_in_the_hires_pass(host):
    settings = {"enable_hr": True, **refiner(host)}
    host.draw("a fox <lora:a:te=1:unet=0@0,1@1>", **settings)
    seen = take(host.other)
    # It takes over in the middle of the first pass, and stays: the hires pass' checkpoint is not asked for here.
    assert len(seen) == 6
    for evaluation, position in ((seen[1], 1), (seen[2], 0), (seen[5], 1)):
        assert agree(evaluation[3], answers(host.baked("other", a=(position, 1)), evaluation))


def test_the_hires_pass_has_a_model_of_its_own(host):
    def load():
        host.other = host.load_model("other", seed=7)

    host.draw("a fox <lora:a:0@0,1@1:hr=0.6>", enable_hr=True, hr_model=load)
    seen = take(host.other)
    twin = host.baked("other", a=(0.6, 0.6))
    assert len(seen) == 4
    for evaluation in seen:
        assert agree(evaluation[3], answers(twin, evaluation))
        assert agree(evaluation[2], words_of(twin, "a fox ", ""))


def test_a_model_that_comes_back_is_as_it_was(host):
    first, other = host.model, host.load_model("other", seed=7)
    pictures = []
    for model in (first, other, first):
        shared.sd_model = model
        pictures.append(host.draw("a fox <lora:a:0@0,1@1>"))
    shared.sd_model = first
    plain = host.draw("a fox")
    assert torch.equal(pictures[0], pictures[2])
    assert not agree(pictures[0], pictures[1])
    assert torch.equal(plain, host.draw("a fox"))
    assert first.hooks() == other.hooks() == 0


def test_a_new_file_in_the_same_model_is_another_base(host):
    """The host reads other weights into the modules that it has."""
    host.add_network("d", 3, DORA)
    other = host.load_model("other", seed=7)
    shared.sd_model = host.model

    def change(params):
        if params.denoiser.step == 1:
            host.model.load_state_dict(other.state_dict())
            host.model.sd_checkpoint_info = other.sd_checkpoint_info

    script_callbacks.registered["cfg_denoiser"].insert(0, change)
    host.draw("a fox <lora:d:te=0:unet=0.5@0,1@1>")
    last = take(host.model)[-1]
    assert agree(last[3], answers(host.baked("other", d=(1, 0)), last))
    assert not agree(last[3], answers(host.baked(d=(1, 0)), last))


@pytest.mark.parametrize("kind", [LORA, DORA], ids=lambda kind: kind.id)
def test_a_network_for_four_channels_on_a_model_that_sees_nine(make_host, kind):
    host = make_host("inpainting")
    host.add_network("n", 5, kind, channels=4)
    host.draw("a fox <lora:n:te=0:unet=0@0,1@1>")
    last = evaluations(host)[-1]
    assert last[0].shape[1] == 9
    assert agree(last[3], answers(host.baked(n=(1, 0)), last))
    assert not agree(last[3], answers(host.baked(n=(1.05, 0)), last))
    wide = {**host.networks["n"]}
    del wide["unet.conv_in"]
    host.networks["rest"] = wide
    assert not agree(last[3], answers(host.baked(rest=(1, 0)), last))


@pytest.mark.parametrize("functional", [False, True])
def test_static_networks_stay_the_hosts_beside_a_schedule(host, functional):
    shared.opts.lora_functional = functional
    host.draw("a fox <lora:b:0.5><lora:a:te=0.4:unet=0@0,1@1>")
    assert networks.loaded_networks == [("b", 0.5)]
    first, *_, last = evaluations(host)
    for evaluation, position in ((first, 0), (last, 1)):
        twin = host.baked(a=(position, 0.4), b=(0.5, 0.5))
        assert agree(evaluation[3], answers(twin, evaluation))
        assert agree(evaluation[2], words_of(twin, "a fox ", ""))
    assert not agree(last[3], answers(host.baked(a=(1.05, 0.4), b=(0.5, 0.5)), last))


def test_a_compiled_unet_leaves_the_text_encoder_out_as_well(host):
    clean = host.draw("a fox ")
    sd_unet.current_unet = object()
    picture = host.picture("a fox <lora:a:1@0,0.5@1>")
    assert torch.equal(picture.draw()[0], clean)
    assert "compiled" in picture.extra_generation_params["Loom errors"]
    assert any("compiled" in comment for comment in picture.comments)


def test_text_encoder_curves_need_no_text_encoder_while_the_unet_works(host):
    """With --lowvram the host moves it away."""

    def move_away(params):
        host.model.cond_stage_model.gone = True

    script_callbacks.registered["cfg_denoiser"].insert(0, move_away)
    host.draw("a fox <lora:a:te=0@0,1@1:unet=0>", steps=12)
    host.model.cond_stage_model.gone = False
    for index, evaluation in enumerate(evaluations(host)):
        assert agree(evaluation[2], words_of(host.baked(a=(0, index / 11)), "a fox ", ""))


@pytest.mark.parametrize("setting", ["lowvram", "first pass"])
def test_conditionings_of_the_hires_pass_that_are_made_before_the_first(host, setting):
    host.model.lowvram = setting == "lowvram"
    shared.opts.hires_fix_use_firstpass_conds = setting == "first pass"

    def move_away(params):
        host.model.cond_stage_model.gone = True

    script_callbacks.registered["cfg_denoiser"].insert(0, move_away)
    host.draw("a fox <lora:a:te=1@0,0@1:unet=0:hrte=0.2@0,0.6@1>", enable_hr=True)
    host.model.cond_stage_model.gone = False
    seen = evaluations(host)
    for index, strength in ((0, 1), (3, 0), (4, 0.2), (7, 0.6)):
        twin = host.baked(a=(0, strength))
        assert agree(seen[index][2], words_of(twin, "a fox ", ""))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("kind", [LORA, DORA, IA3], ids=lambda kind: kind.id)
def test_tiling_changes_the_convolutions_of_networks_too(host, kind, tiled):
    """The host sets it on every convolution at the start of a picture."""
    host.add_network("k", 5, kind)
    twin = host.baked(k=(1, 0))
    for model in (host.model, twin):
        for module in model.model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.padding_mode = "circular" if tiled else "zeros"
                module._reversed_padding_repeated_twice = [module.padding[0]] * 4
    host.draw("a fox <lora:k:te=0:unet=0@0,1@1>")
    last = evaluations(host)[-1]
    assert agree(last[3], answers(twin, last))
    assert not agree(last[3], answers(host.baked(), last))


def test_the_layers_of_the_stand_in_are_all_of_every_model(make_host):
    host = make_host("sd2")
    assert set(host.networks["a"]) == set(LAYERS)


def test_networks_of_the_first_pass_in_the_words_of_the_hires_pass(host):
    """With the option, the hires prompt is encoded with the first prompt's networks, at their strengths in the hires pass."""
    shared.opts.hires_fix_use_firstpass_conds = True
    first = "a fox <lora:b:te=0:unet=0@0,0@1><lora:a:te=0@0,0.5@1:unet=0>"
    picture = host.picture(first, enable_hr=True, hr_prompt="a cat <lora:b:te=0:unet=0@0,1@1>")
    picture.draw()
    for index, evaluation in enumerate(evaluations(host)[4:]):
        twin = host.baked(a=(0, index / 6), b=(index / 3, 0))
        assert agree(evaluation[2][:1], words_of(twin, "a cat "))
        assert agree(evaluation[3], answers(twin, evaluation))
    assert "Loom errors" not in picture.extra_generation_params
