"""What is computed of the pictures once before the first step: their latents, and how each came to its bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch import Tensor

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.families.table import Latent
from lib_lora.train.buckets import Buckets, Fit, Size
from lib_lora.train.dataset import Dataset, Picture, Problem
from lib_lora.train.memory import pictures_at_once
from lib_lora.train.pixels import Loaded, load_picture


@dataclass(frozen=True, slots=True)
class Latents:
    """The pictures that could be read, how each came to its bucket, its latents (channels, height, width), and what was left out."""

    pictures: tuple[Picture, ...]
    fits: tuple[Fit, ...]
    values: tuple[Tensor, ...]
    problems: tuple[Problem, ...]

    def buckets(self) -> list[Tensor]:
        """Return the rows of one epoch, repeats included, apart by size."""
        rows: dict[Size, list[int]] = {}
        for row, (picture, fit) in enumerate(zip(self.pictures, self.fits, strict=True)):
            rows.setdefault(fit.bucket, []).extend([row] * picture.repeats)
        return [torch.tensor(rows[size]) for size in sorted(rows)]


@torch.no_grad()
def encode_pictures(
    vae: AutoencoderKL,
    latent: Latent,
    dataset: Dataset,
    buckets: Buckets,
    progress: Callable[[int], None],
) -> Latents:
    """Encode each picture to the mean of its latent distribution, on the encoder's device.

    The values are kept in ordinary memory, in the encoder's dtype. progress: called with the number of pictures done. Raises LoraError when not one
    picture can be read, and when a picture's latents are not finite.
    """
    batch = pictures_at_once(buckets.size)
    kept, fits, values, problems = [], [], [], list(dataset.problems)
    for start in range(0, len(dataset.pictures), batch):
        loaded = []
        for picture in dataset.pictures[start : start + batch]:
            try:
                loaded.append(load_picture(picture.file, buckets))
                kept.append(picture)
            except FileFormatError as error:
                problems.append(Problem(picture.file, str(error)))
        values += _encode(vae, latent, loaded)
        fits += [each.fit for each in loaded]
        progress(min(start + batch, len(dataset.pictures)))
    if not kept:
        raise LoraError(f"No picture can be read. {' '.join(f'{each}.' for each in problems[:5])}")
    _check(values, kept)
    return Latents(tuple(kept), tuple(fits), tuple(values), tuple(problems))


def _encode(vae: AutoencoderKL, latent: Latent, loaded: Sequence[Loaded]) -> list[Tensor]:
    """Return the latents of pictures, those of one size at once."""
    places: dict[Size, list[int]] = {}
    for n, each in enumerate(loaded):
        places.setdefault(each.fit.bucket, []).append(n)
    found: dict[int, Tensor] = {}
    for same in places.values():
        pixels = torch.stack([_pixels(loaded[n].image) for n in same])
        weight = next(vae.parameters())
        mean = vae.encode(pixels.to(weight) / 127.5 - 1.0).latent_dist.mean.cpu()
        found |= dict(zip(same, (mean - latent.shift) * latent.scale, strict=True))
    return [found[n] for n in range(len(loaded))]


def _pixels(image: Image.Image) -> Tensor:
    """Return a picture as (3, height, width) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _check(values: Sequence[Tensor], pictures: Sequence[Picture]) -> None:
    pairs = zip(pictures, values, strict=True)
    broken = [picture.file.name for picture, value in pairs if not bool(value.isfinite().all())]
    if broken:
        raise LoraError(
            f"The encoder gave values that are not finite for {', '.join(broken[:5])}: compute in fp32, or use another VAE."
        )
