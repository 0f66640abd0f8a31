"""The acceptance of the embedded base model, measured on the file as it is committed."""

import random
import re
import sys

import pytest
import torch
from diffusers import StableDiffusionPipeline

from lib_lora.demo import scenes
from lib_lora.demo.lessons import MODEL_DIR
from lib_lora.demo.measure import measured_colour, measured_shape
from lib_lora.demo.run import BASE
from lib_lora.demo.shots import request
from lib_lora.demo.train_vae import photograph_parts, photograph_psnr
from lib_lora.formats.header import read_header
from lib_lora.hosts.diffusers import DiffusersHost
from tests.golden_data import golden

PROMPTS = 64
CLIP_LAYER = re.compile(r"\.text_model\.encoder\.layers\.(\d+)\.")


@pytest.fixture(scope="module")
def asked():
    """The scenes and prompts of the acceptance, drawn before any picture was made."""
    rng = random.Random(0)
    drawn = [scenes.random_scene(rng) for _ in range(PROMPTS)]
    return [(scene, scenes.caption(scene, rng)) for scene in drawn]


@pytest.fixture(scope="module")
def answers(asked):
    """For each prompt the scene asked for and the colour and the shape that the picture shows."""
    host = DiffusersHost(BASE, config=MODEL_DIR)
    requests = [request(prompt, (), seed) for seed, (_, prompt) in enumerate(asked)]
    pictures = [generated.image for generated in host.generate_batch(requests)]
    return [
        (scene, measured_colour(picture), measured_shape(picture))
        for (scene, _), picture in zip(asked, pictures, strict=True)
    ]


@pytest.fixture(scope="module")
def pipeline():
    return StableDiffusionPipeline.from_single_file(
        str(BASE), config=str(MODEL_DIR), local_files_only=True, torch_dtype=torch.float32
    )


def rights(answers):
    colours = sum(colour == scene.colour for scene, colour, _ in answers)
    shapes = sum(shape == scene.shape for scene, _, shape in answers)
    return colours, shapes


def test_pictures_show_what_the_prompt_asks_for(answers):
    """The figures that the model was made for; the prompts were drawn before any picture."""
    colours, shapes = rights(answers)
    told = f"colour {colours}, shape {shapes} of {PROMPTS}"
    assert colours >= 0.90 * PROMPTS, told
    assert shapes >= 0.85 * PROMPTS, told


def test_pairs_held_out_of_training_are_reported_apart(answers, record_property, capsys):
    """No figure is promised for them; better than chance (one of 8 colours, one of 5 shapes) they must be."""
    held_out = [answer for answer in answers if answer[0].held_out]
    colours, shapes = rights(held_out)
    record_property("held_out", f"colour {colours}, shape {shapes} of {len(held_out)}")
    with capsys.disabled():
        sys.stdout.write(f"\nheld-out pairs: colour {colours}, shape {shapes} of {len(held_out)}\n")
    assert held_out
    assert colours > len(held_out) / 8
    assert shapes > len(held_out) / 5


def test_photographs_survive_the_autoencoder(pipeline):
    _, held_out = photograph_parts()
    assert photograph_psnr(pipeline.vae, held_out, side=128) >= 19.0


def test_the_file_is_small_and_half_precision():
    assert BASE.stat().st_size <= 24_000_000
    entries = read_header(BASE).tensors
    buffers = golden("sd15")["buffers"]
    learned = {key: entry.dtype for key, entry in entries.items() if key not in buffers}
    assert {dtype for key, dtype in learned.items() if "position_ids" not in key} == {"F16"}


def test_the_keys_are_those_of_sd15_but_for_the_number_of_clip_layers():
    keys = set(read_header(BASE).tensors)
    depth = 1 + max(int(match[1]) for match in map(CLIP_LAYER.search, keys) if match)
    expected = {
        key
        for key in golden("sd15")["original"]
        if not (match := CLIP_LAYER.search(key)) or int(match[1]) < depth
    }
    assert keys == expected


def test_the_widths_are_fixed_as_in_sd1(pipeline):
    unet, vae = pipeline.unet.config, pipeline.vae.config
    widths = (*unet.block_out_channels, *vae.block_out_channels)
    assert len(unet.block_out_channels) == len(vae.block_out_channels) == 4
    assert all(width % 32 == 0 for width in widths)
    assert (unet.layers_per_block, unet.in_channels, vae.latent_channels) == (2, 4, 4)
    assert pipeline.vae_scale_factor == 8
    assert pipeline.text_encoder.config.vocab_size == 49408


def test_diffusers_draws_from_the_file_without_a_network(pipeline):
    picture = pipeline("a red circle", num_inference_steps=2, width=64, height=64).images[0]
    assert picture.size == (64, 64)
