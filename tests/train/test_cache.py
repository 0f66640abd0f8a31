"""Latents of pictures of different sizes: scaled and shifted as each family's are, kept apart by size."""

import numpy as np
import pytest
import torch
from PIL import Image

from lib_lora.errors import LoraError
from lib_lora.train.buckets import Buckets
from lib_lora.train.cache import encode_pictures
from lib_lora.train.config_run import RunConfig
from lib_lora.train.dataset import find_pictures
from lib_lora.train.savings import prepare_vae
from tests.train import families

SIZES = ((64, 64), (120, 64), (64, 100), (90, 90), (32, 32))
# The published configurations of the autoencoders: scale and shift.
PUBLISHED = {"sd1": (0.18215, 0.0), "sdxl": (0.13025, 0.0), "sd3": (1.5305, 0.0609)}


@pytest.fixture
def dataset(tmp_path):
    draw = torch.Generator().manual_seed(0)
    for number, (width, height) in enumerate(SIZES):
        values = torch.randint(256, (height, width, 3), generator=draw, dtype=torch.uint8)
        Image.fromarray(values.numpy()).save(tmp_path / f"{number}.png")
    (tmp_path / "2_more").mkdir()
    Image.new("RGB", (120, 64), "red").save(tmp_path / "2_more" / "5.png")
    return find_pictures(tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_latents_are_scaled_and_shifted_as_the_familys(dataset, name):
    family = families.KINDS[name].family
    torch.manual_seed(0)
    vae = families.vae(family.latent.channels).eval()
    found = encode_pictures(vae, family.latent, dataset, Buckets(64, 0), lambda done: None)
    scale, shift = PUBLISHED[name]
    with Image.open(dataset.pictures[0].file) as image:
        pixels = torch.from_numpy(np.array(image)).float()
    with torch.no_grad():
        mean = vae.encode(pixels.permute(2, 0, 1)[None] / 127.5 - 1).latent_dist.mean[0]
    torch.testing.assert_close(found.values[0], (mean - shift) * scale, rtol=1e-4, atol=1e-5)
    if shift:
        assert float((found.values[0] - mean * scale).abs().max()) > 0.05


def test_an_epoch_is_apart_by_size_and_has_its_repeats(dataset):
    latent = families.KINDS["sd1"].family.latent
    progress = []
    vae = families.vae().eval()
    found = encode_pictures(vae, latent, dataset, Buckets(64, 16), progress.append)
    # In the order of the sizes: 48 x 80, 64 x 64, 80 x 48; the last picture comes twice.
    assert [rows.tolist() for rows in found.buckets()] == [[2], [0, 3, 4], [1, 5, 5]]
    shapes = [tuple(value.shape[1:]) for value in found.values]
    assert shapes == [(8, 8), (6, 10), (10, 6), (8, 8), (8, 8), (6, 10)]
    assert progress[-1] == 6


def test_pictures_that_the_encoder_turns_into_no_numbers_are_named(dataset):
    vae, progress = families.vae().eval(), []
    vae.quant_conv.bias.data[:] = float("nan")
    with pytest.raises(LoraError, match=r"not finite for 0\.png, 1\.png"):
        encode_pictures(
            vae, families.KINDS["sd1"].family.latent, dataset, Buckets(64, 0), progress.append
        )


def test_pictures_encoded_one_by_one_have_the_same_latents(dataset):
    latent = families.KINDS["sd1"].family.latent
    found, batches = [], []
    for slicing in (False, True):
        torch.manual_seed(0)
        vae = prepare_vae(families.vae().eval(), RunConfig(vae_slicing=slicing))
        seen = []
        vae.encoder.register_forward_pre_hook(
            lambda module, args, seen=seen: seen.append(len(args[0]))
        )
        found.append(encode_pictures(vae, latent, dataset, Buckets(64, 16), lambda done: None))
        batches.append(seen)
    assert [sorted(each) for each in batches] == [[1, 2, 3], [1] * 6]
    for one, other in zip(found[1].values, found[0].values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert float((found[1].values[0] - found[1].values[3]).abs().max()) > 0.01
