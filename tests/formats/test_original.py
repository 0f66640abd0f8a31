"""The written original layout against the recorded key set of SD1.5, and against diffusers' single-file loader."""

import json

import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import detect_family
from lib_lora.formats.original import layer_view, schedule_buffers, swapped, to_original
from tests.families import recorded
from tests.golden_data import golden, shapes_of
from tests.tiny import CONFIG, tiny_checkpoint, tiny_components

SD15 = shapes_of(golden("sd15")["original"])
UNET_WIDTHS, VAE_WIDTHS = (320, 640, 1280, 1280), (128, 256, 512, 512)


def sd15_modules():
    """Return SD1.5 at its real size, without storage."""
    unet = dict(UNet2DConditionModel.load_config(CONFIG / "unet"))
    unet |= {"block_out_channels": UNET_WIDTHS, "cross_attention_dim": 768}
    vae = dict(AutoencoderKL.load_config(CONFIG / "vae")) | {"block_out_channels": VAE_WIDTHS}
    clip = CLIPTextConfig(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12
    )
    with torch.device("meta"):
        return {
            "unet": UNet2DConditionModel.from_config(unet),
            "te1": CLIPTextModel(clip),
            "vae": AutoencoderKL.from_config(vae),
        }


def test_sd15_has_exactly_the_recorded_keys_and_shapes():
    states = {name: module.state_dict() for name, module in sd15_modules().items()}
    written = {key: tuple(tensor.shape) for key, tensor in to_original(states).items()}
    assert written == SD15


def random_states(shapes):
    """Return random tensors for a recorded checkpoint's layers, by component and diffusers key, and where each one belongs."""
    states, places = {}, {}
    for layer in detect_family(shapes).layers(shapes).values():
        state = states.setdefault(layer.component, {})
        for kind, place in (("weight", layer.weight), ("bias", layer.bias)):
            if place:
                shape = place.part.layer_shape(shapes[place.key])
                state[f"{layer.path}.{kind}"] = torch.randn(shape)
                places[f"{layer.component}.{layer.path}.{kind}"] = place
    return states, places


@pytest.mark.parametrize("name", ["sd21-v", "sdxl-base", "sdxl-refiner", "sd3-medium"])
def test_fused_transposed_and_swapped_tensors_of_every_family_lie_where_its_placements_say(name):
    shapes = recorded.small(name)
    states, places = random_states(shapes)
    written = to_original(states, detect_family(shapes))
    for layer, place in places.items():
        assert tuple(written[place.key].shape) == shapes[place.key], layer
        component, _, key = layer.partition(".")
        found = swapped(layer_view(written[place.key], place.part), place.part)
        assert torch.equal(found, states[component][key]), layer


def test_names_of_transformers_4_and_5_give_the_same_file():
    states = {name: module.state_dict() for name, module in tiny_components().items()}
    te1 = {key.removeprefix("text_model."): value for key, value in states["te1"].items()}
    older = {f"text_model.{key}": value for key, value in te1.items()}
    assert to_original(states | {"te1": te1}).keys() == to_original(states | {"te1": older}).keys()


def test_the_embedded_configuration_gives_the_keys_of_sd15_but_for_the_text_encoders_layers():
    states = {name: module.state_dict() for name, module in tiny_components().items()}
    depth = json.loads((CONFIG / "text_encoder" / "config.json").read_text())["num_hidden_layers"]
    beyond = tuple(f"text_model.encoder.layers.{n}." for n in range(depth, 12))
    assert to_original(states).keys() == {
        key for key in SD15 if not any(layer in key for layer in beyond)
    }


def test_diffusers_loads_the_file_offline_with_equal_weights(tmp_path):
    file = tiny_checkpoint(tmp_path, seed=3)
    pipeline = StableDiffusionPipeline.from_single_file(
        str(file), config=str(CONFIG), local_files_only=True
    )
    loaded = {"unet": pipeline.unet, "te1": pipeline.text_encoder, "vae": pipeline.vae}
    other = tiny_components(seed=4)
    for name, module in tiny_components(seed=3).items():
        state = loaded[name].state_dict()
        assert state.keys() == module.state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())
        assert not all(
            torch.equal(state[key], value) for key, value in other[name].state_dict().items()
        )


def test_the_buffers_are_the_noise_schedule_of_the_diffusers_scheduler():
    scheduler = DDIMScheduler.from_pretrained(CONFIG / "scheduler", local_files_only=True)
    buffers = schedule_buffers()
    torch.testing.assert_close(buffers["betas"], scheduler.betas, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        buffers["alphas_cumprod"], scheduler.alphas_cumprod, rtol=1e-4, atol=0
    )


def test_the_posterior_buffers_are_the_gaussian_that_bayes_rule_gives():
    # q(x_{t-1} | x_t, x_0): a product of N(x_t; sqrt(a) x_{t-1}, b) and N(x_{t-1}; sqrt(A') x_0, 1 - A') in x_{t-1}.
    buffers = {key: value.double() for key, value in schedule_buffers().items()}
    t = torch.arange(1, 1000)
    beta, before = buffers["betas"][t], buffers["alphas_cumprod_prev"][t]
    precision = (1 - beta) / beta + 1 / (1 - before)
    expected = {
        "posterior_variance": 1 / precision,
        "posterior_log_variance_clipped": -precision.log(),
        "posterior_mean_coef1": before.sqrt() / (1 - before) / precision,
        "posterior_mean_coef2": (1 - beta).sqrt() / beta / precision,
    }
    for name, value in expected.items():
        torch.testing.assert_close(buffers[name][t], value, rtol=2e-4, atol=1e-7)


def test_a_tensor_without_a_place_and_a_missing_component_are_named():
    states = {name: dict(module.state_dict()) for name, module in tiny_components().items()}
    states["unet"]["extra.weight"] = torch.zeros(1)
    with pytest.raises(FileFormatError, match=r"extra\.weight"):
        to_original(states)
    with pytest.raises(FileFormatError, match="vae"):
        to_original({"unet": {}, "te1": {}})
