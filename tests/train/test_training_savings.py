"""Savings in a whole training: what must give the same bytes does, what rounds is near, and what is done with is let go of."""

import gc

import pytest
import torch
from diffusers import AutoencoderKL
from transformers import CLIPTextModel

from lib_lora.errors import UsageError
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import read_network
from lib_lora.formats.stream import TensorReader
from lib_lora.train.objective import Draws
from lib_lora.train.prepare import prepare
from lib_lora.train.training import train
from tests.train.asked import asked_config
from tests.train.pictures import make_pictures
from tests.train.test_training import Noter

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def asked(tiny_file, tmp_path_factory):
    """Return a configuration of a few steps, writing into a folder of its own."""
    pictures = make_pictures(tmp_path_factory.mktemp("pictures"))

    def make(**sections):
        defaults = {
            "network": {"text_encoder": True},
            "schedule": {"steps": 3, "batch": 1},
            "optimizer": {"unet_rate": 1e-3, "text_encoder_rate": 1e-3},
            "loss": {"validation_draws": 1},
        }
        out = tmp_path_factory.mktemp("out") / "lora.safetensors"
        return asked_config(tiny_file, pictures, out, **{**defaults, **sections})

    return make


@pytest.fixture(scope="module")
def plain(asked, tmp_path_factory):
    """The file of a training without any saving."""
    return train(asked(), tmp_path_factory.mktemp("run"), None, Noter()).file


def tensors_of(file):
    with TensorReader(file) as reader:
        return {key: reader.read(key) for key in reader.header.tensors}


def test_gradient_checkpointing_gives_the_same_tensors(asked, plain, tmp_path):
    result = train(asked(run={"checkpointing": True}), tmp_path, None, Noter())
    found, expected = tensors_of(result.file), tensors_of(plain)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert any(float(each.abs().max()) > 0 for key, each in expected.items() if "up" in key)
    told = (
        read_header(file).metadata["ss_gradient_checkpointing"] for file in (result.file, plain)
    )
    assert list(told) == ["True", "False"]


def test_a_training_on_rounded_weights_is_near_and_resumes_to_the_same_bytes(
    asked, plain, tiny, tmp_path
):
    run = {"storage": "fp8"}
    whole = train(asked(run=run), tmp_path / "whole", None, Noter()).file
    config = asked(run=run)
    assert train(config, tmp_path / "parts", None, Noter({2: "pause"})).step == 2
    resumed = train(config, tmp_path / "parts", None, Noter()).file
    assert resumed.read_bytes() == whole.read_bytes()
    found, expected = (
        read_network(file, tiny.checkpoint.layers, tiny.checkpoint.family.components).layers
        for file in (whole, plain)
    )
    assert found.keys() == expected.keys()
    ups = [
        torch.stack([network.tensors["lora_up.weight"].flatten()[:16] for network in each.values()])
        for each in (found, expected)
    ]
    likeness = torch.cosine_similarity(*(each.flatten() for each in ups), dim=0)
    # The first steps of AdamW follow the gradient's signs, and rounding turns those of small ones.
    assert 0.5 < float(likeness) < 0.99999


def test_eight_bit_moments_are_refused_on_a_cpu(asked, tmp_path):
    config = asked(optimizer={"type": "adamw8bit"}, run={"device": "cpu"})
    with pytest.raises(UsageError, match="needs a CUDA device"):
        train(config, tmp_path, None, Noter())


def alive(kind):
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_encoders_are_let_go_of_once_they_have_spoken(asked, tiny):
    kinds = (AutoencoderKL, CLIPTextModel)
    before = [alive(kind) for kind in kinds]
    config = asked(network={"text_encoder": False})
    prepared = prepare(config, tiny.checkpoint, CPU, Noter())
    assert [alive(kind) for kind in kinds] == before
    assert len(prepared.material.latents) == 4


def test_cached_text_gives_the_loss_of_text_encoded_each_time(asked, tiny):
    cached, live = (
        prepare(asked(network={"text_encoder": each}), tiny.checkpoint, CPU, Noter()).material
        for each in (False, True)
    )
    noise = torch.randn(1, *cached.latents[3].shape, generator=torch.Generator().manual_seed(0))
    times, kept = torch.tensor([300]), torch.tensor([False])

    def loss(material, dropped=kept):
        with torch.no_grad():
            return float(material.loss(Draws(torch.tensor([3]), times, noise, dropped)))

    assert loss(cached) == pytest.approx(loss(live), rel=1e-5)
    # The control: another text gives another loss.
    assert loss(cached, ~kept) != pytest.approx(loss(live), rel=1e-5)
