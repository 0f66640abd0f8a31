"""Train the autoencoder of the embedded base model on drawn scenes, free drawings and crops of real photographs.

The loss is L1 + 2 x MSE + a small KL term (Rombach et al., 2022, appendix G, without the adversarial part: at 64 pixels it buys
nothing). Afterwards the latents are brought to mean 0 and standard deviation 1 / 0.18215 per channel by folding a shift and a
scale into the two 1x1 convolutions at the bottleneck, so that SD1's fixed scaling factor is right for this model too.
"""

from __future__ import annotations

import logging
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image, ImageDraw
from skimage import data as photographs
from torch.nn import functional

from lib_lora.demo import scenes

log = logging.getLogger(__name__)

CONFIG_DIR = Path(__file__).with_name("model")
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina")
SCALING_FACTOR = 0.18215
# The second level is widened after training: SD1's key set needs neighbouring levels of different widths, training does not.
TRAINED_WIDTHS = (32, 32, 64, 64)
KL_WEIGHT = 3e-4


@dataclass(frozen=True, slots=True)
class Round:
    """A stretch of training under one rate that rises, then falls to near zero.

    stages: (side, pictures, steps); edges: how much more the error counts where a picture differs from its own blur; encoder:
    whether the encoder is trained too.
    """

    peak: float
    stages: tuple[tuple[int, int, int], ...]
    edges: float = 0.0
    encoder: bool = True


# Small crops first: they give four times the steps for the same work.
ROUNDS = (
    Round(2e-3, ((32, 24, 1400), (64, 12, 350))),
    Round(1e-3, ((64, 8, 600),)),
    Round(1e-3, ((64, 8, 450),), edges=4.0),
)
# The latents are settled then; only the decoder goes on learning.
POLISH = Round(1e-3, ((64, 8, 1200),), edges=4.0, encoder=False)


def photograph_parts() -> tuple[list[Image.Image], list[Image.Image]]:
    """Return the training part and the held-out part of every bundled photograph, the right-hand 30 % being held out."""
    training, held_out = [], []
    for name in PHOTOGRAPHS:
        photo = Image.fromarray(getattr(photographs, name)()).convert("RGB")
        photo.thumbnail((640, 640), Image.Resampling.LANCZOS)
        cut = round(photo.width * 0.7)
        training.append(photo.crop((0, 0, cut, photo.height)))
        held_out.append(photo.crop((cut, 0, photo.width, photo.height)))
    return training, held_out


def random_crop(photo: Image.Image, side: int, rng: random.Random) -> Image.Image:
    """Cut a square of a random size out of a photograph and bring it to `side` x `side` pixels."""
    size = rng.uniform(min(side, *photo.size), min(photo.size))
    x, y = rng.uniform(0, photo.width - size), rng.uniform(0, photo.height - size)
    box = (x, y, x + size, y + size)
    crop = photo.resize((side, side), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def free_drawing(side: int, rng: random.Random) -> Image.Image:
    """Paint a few polygons and strokes in any colours, so that users' drawings survive the autoencoder too."""
    large = side * 2

    def colour() -> tuple[int, ...]:
        return tuple(rng.randrange(256) for _ in range(3))

    picture = Image.new("RGB", (large, large), colour())
    pen = ImageDraw.Draw(picture)
    for _ in range(rng.randint(1, 6)):
        points = [
            (rng.uniform(0, large), rng.uniform(0, large)) for _ in range(rng.choice((2, 3, 4, 6)))
        ]
        if len(points) == 2:
            pen.line(points, fill=colour(), width=rng.randint(2, large // 8))
        else:
            pen.polygon(points, fill=colour())
    return picture.resize((side, side), Image.Resampling.BOX)


def to_tensor(pictures: list[Image.Image]) -> torch.Tensor:
    """Stack RGB pictures of one size into (n, 3, height, width), float32 in -1 to 1."""
    stacked = np.stack([np.asarray(p, dtype=np.float32) for p in pictures])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous() / 127.5 - 1.0


def training_batch(
    photos: list[Image.Image], side: int, count: int, rng: random.Random
) -> torch.Tensor:
    """Draw five in eight of a batch as scenes, a quarter as photograph crops and the rest as free drawings."""
    pictures = []
    for k in range(count):
        if k < count * 5 // 8:
            scene = scenes.draw(scenes.random_training_scene(rng), rng, 64)
            pictures.append(_window(scene, side, rng))
        elif k < count * 7 // 8:
            pictures.append(random_crop(rng.choice(photos), side, rng))
        else:
            pictures.append(free_drawing(side, rng))
    return to_tensor(pictures)


def _window(picture: Image.Image, side: int, rng: random.Random) -> Image.Image:
    x, y = (rng.randint(0, extent - side) for extent in picture.size)
    return picture.crop((x, y, x + side, y + side))


def train(folder: Path, seed: int = 0) -> AutoencoderKL:
    """Train the autoencoder, save it as `folder`/vae.pt and return it; a finished one is only loaded."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    config = AutoencoderKL.load_config(str(CONFIG_DIR / "vae"))
    vae = AutoencoderKL.from_config({**config, "block_out_channels": TRAINED_WIDTHS})
    finished = folder / "vae.pt"
    if finished.exists():
        vae.load_state_dict(torch.load(finished, weights_only=True))
        return vae.eval()
    photos, held_out = photograph_parts()
    for stretch in ROUNDS:
        _train_round(vae, stretch, photos, rng)
    fit_latents(vae, training_batch(photos, 64, 256, rng), drawings=160)
    _train_round(vae, POLISH, photos, rng)
    log.info("held-out photographs at 128 px: %.2f dB", photograph_psnr(vae, held_out))
    torch.save(vae.state_dict(), finished)
    return vae.eval()


def _train_round(
    vae: AutoencoderKL, stretch: Round, photos: list[Image.Image], rng: random.Random
) -> None:
    trained = list(vae.parameters())
    if not stretch.encoder:
        trained = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.99), weight_decay=0)
    total = sum(steps for _, _, steps in stretch.stages)
    batches = [(side, count) for side, count, steps in stretch.stages for _ in range(steps)]
    for done, (side, count) in enumerate(batches):
        warm = min(1.0, (done + 1) / 50)
        falling = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done / total))
        for group in optimizer.param_groups:
            group["lr"] = stretch.peak * warm * falling
        loss = _loss(vae, training_batch(photos, side, count, rng), stretch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if (done + 1) % 50 == 0:
            log.info("vae step %d of %d, loss %.4f", done + 1, total, loss.item())


@torch.no_grad()
def widen_second_level(narrow: AutoencoderKL) -> AutoencoderKL:
    """Return an autoencoder with a second level of three times the width that computes the same (Net2Net, Chen et al., 2016).

    Every channel of the level is there three times, and what reads them divides its weights by three. The copies share a
    normalisation group, so its statistics stay. Where the width now changes, the identity that a resnet added becomes its shortcut.
    """
    widths = narrow.config["block_out_channels"]
    wider = (widths[0], 3 * widths[1], *widths[2:])
    wide = AutoencoderKL.from_config({**narrow.config, "block_out_channels": wider}).eval()
    state = narrow.state_dict()
    last = len(widths) - 1
    for resnet in ("encoder.down_blocks.1.resnets.0", f"decoder.up_blocks.{last}.resnets.0"):
        state[f"{resnet}.conv_shortcut.weight"] = torch.eye(widths[0])[:, :, None, None]
        state[f"{resnet}.conv_shortcut.bias"] = torch.zeros(widths[0])
    for key, tensor in wide.state_dict().items():
        found = state[key]
        if tensor.dim() > 1 and tensor.shape[1] != found.shape[1]:
            found = found.repeat_interleave(3, dim=1) / 3
        if tensor.shape[0] != found.shape[0]:
            found = found.repeat_interleave(3, dim=0)
        tensor.copy_(found)
    return wide


def _loss(vae: AutoencoderKL, pictures: torch.Tensor, stretch: Round) -> torch.Tensor:
    with torch.set_grad_enabled(stretch.encoder):
        posterior = vae.encode(pictures).latent_dist
    difference = vae.decode(posterior.sample()).sample - pictures
    error = difference.abs() + 2 * difference.square()
    loss = (error * _edge_weights(pictures, stretch.edges)).mean()
    divergence = 0.5 * (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean()
    return loss + KL_WEIGHT * divergence


def _edge_weights(pictures: torch.Tensor, edges: float) -> torch.Tensor:
    """Return weights (n, 1, height, width) of mean 1 that are larger near edges: flat ground must not drown the outline."""
    blurred = functional.avg_pool2d(pictures, 9, stride=1, padding=4, count_include_pad=False)
    weights = 1 + edges * (pictures - blurred).abs().mean(dim=1, keepdim=True)
    return weights / weights.mean()


@torch.no_grad()
def fit_latents(vae: AutoencoderKL, pictures: torch.Tensor, drawings: int) -> None:
    """Fold a shift and a scale per channel into the bottleneck so that scaled latents of drawings have mean 0 and variance 1.

    `pictures` is a batch of `training_batch`; its first `drawings` are the scenes. The decoder undoes the change exactly.
    """
    mean = vae.encode(pictures[:drawings]).latent_dist.mean
    shift = mean.mean(dim=(0, 2, 3))
    factor = 1.0 / (SCALING_FACTOR * mean.std(dim=(0, 2, 3)))
    channels = len(shift)
    before, after = vae.quant_conv, vae.post_quant_conv
    before.weight[:channels] *= factor[:, None, None, None]
    before.bias[:channels] = (before.bias[:channels] - shift) * factor
    before.bias[channels:] += 2 * factor.log()
    after.bias += after.weight[:, :, 0, 0] @ shift
    after.weight /= factor[None, :, None, None]


@torch.no_grad()
def photograph_psnr(vae: AutoencoderKL, photos: list[Image.Image], side: int = 128) -> float:
    """Return the mean peak signal-to-noise ratio in dB of eight crops per photograph sent through the autoencoder."""
    rng = random.Random(0)
    values = []
    for photo in photos:
        crops = to_tensor([random_crop(photo, side, rng) for _ in range(8)])
        back = vae.decode(vae.encode(crops).latent_dist.mean).sample.clamp(-1, 1)
        error = ((back - crops) / 2).square().mean(dim=(1, 2, 3))
        values.extend((-10 * error.log10()).tolist())
    return sum(values) / len(values)
