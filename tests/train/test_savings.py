"""Savings put on real modules: what is computed again gives the same bits, and less is kept; tiles; what cannot be had."""

import copy

import pytest
import torch

from lib_lora.errors import UsageError
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.config_run import RunConfig
from lib_lora.train.memory_parts import activations
from lib_lora.train.precision import SmallConv2d, SmallLinear
from lib_lora.train.savings import compute_blocks_again, prepare_denoiser, prepare_vae
from tests.train import small_models
from tests.train.asked import asked_config
from tests.train.saved import count_saved

CPU = torch.device("cpu")


def gradients(name, again):
    """Return the gradients of a fresh network, and the bytes that autograd keeps outside of what is computed again."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, facts = getattr(small_models, name)()
        given = small_models.inputs(module, 8, 1)
    module.requires_grad_(False).eval()
    config = asked_config("a", "b", "c.safetensors", network={"conv_rank": 2})
    layers = selected_layers(facts.family, facts.layers, config.network)
    attached = attach(config.network, layers, live_modules({facts.denoiser: module}, layers), 0)
    trained = attached.trainable(facts.denoiser)
    # A fresh network adds nothing and passes no gradient down: every second factor starts at zero.
    draw = torch.Generator().manual_seed(1)
    for tensor in trained:
        tensor.data = torch.randn(tensor.shape, generator=draw) * 0.1
    if again:
        compute_blocks_again({facts.denoiser: module})
    saved = count_saved(module, trained, lambda: module(**given)[0].square().mean())
    return [tensor.grad for tensor in trained], saved.total()


@pytest.mark.parametrize("name", ["sd1", "sdxl"])
def test_blocks_computed_again_give_the_same_gradients_and_keep_less(name):
    plain, kept = gradients(name, again=False)
    found, left = gradients(name, again=True)
    assert all(map(torch.equal, found, plain))
    assert all(float(each.abs().max()) > 0 for each in plain)
    assert left < kept / 5


def test_the_text_encoder_is_computed_again_too(tiny):
    encoder = copy.deepcopy(tiny.text_encoders["te1"])
    ids = torch.arange(77)[None]

    layer = encoder.get_submodule("encoder.layers.0") if hasattr(encoder, "encoder") else None
    layer = layer or encoder.get_submodule("text_model.encoder.layers.0")
    before = layer.forward
    compute_blocks_again({"te1": encoder})
    assert layer.forward is not before
    plain = tiny.text_encoders["te1"](ids).last_hidden_state
    assert torch.equal(encoder(ids).last_hidden_state, plain)


def test_eight_bit_storage_takes_the_inside_of_the_blocks(tiny):
    unet = copy.deepcopy(tiny.denoiser)
    prepare_denoiser(unet, RunConfig(storage="fp8"), CPU)
    small = {p for p, inner in unet.named_modules() if isinstance(inner, SmallLinear | SmallConv2d)}
    assert "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q" in small
    assert "mid_block.resnets.0.conv1" in small
    assert not {"conv_in", "conv_out", "time_embedding.linear_1"} & small
    given = small_models.inputs(tiny.denoiser, 8, 1)
    with torch.no_grad():
        found, plain = unet(**given)[0], tiny.denoiser(**given)[0]
    change = float((found - plain).norm() / plain.norm())
    assert 0 < change < 0.1


@pytest.mark.parametrize("attention", ["sdp", "xformers"])
def test_xformers_is_refused_where_it_cannot_work(tiny, attention):
    config = RunConfig(attention=attention)
    if attention == "sdp":
        prepare_denoiser(tiny.denoiser, config, CPU)
        return
    with pytest.raises(UsageError, match="needs the xformers library and a CUDA device"):
        prepare_denoiser(tiny.denoiser, config, CPU)


@pytest.mark.parametrize("size", [64, 96])
def test_pictures_larger_than_a_tile_are_encoded_in_tiles(tiny, size):
    vae = prepare_vae(copy.deepcopy(tiny.vae), RunConfig(vae_tiling=True), tile=64)
    seen = []
    vae.encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-1]))
    pixels = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        found, whole = (each.encode(pixels).latent_dist.mean for each in (vae, tiny.vae))
    assert found.shape == whole.shape
    assert max(seen) == 64
    assert torch.equal(found, whole) == (size == 64) == (len(seen) == 1)


def test_the_vae_has_a_precision_of_its_own(tiny):
    vae = copy.deepcopy(tiny.vae).bfloat16()
    assert prepare_vae(vae, RunConfig()).dtype == torch.bfloat16
    assert prepare_vae(vae, RunConfig(vae_precision="fp32")).dtype == torch.float32


def test_the_plan_knows_what_is_computed_again():
    _, facts = small_models.sd1()
    told = activations(asked_config("a", "b", "c.safetensors"), facts)
    assert told.entries + told.largest_block < told.whole / 3
