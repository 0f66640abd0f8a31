"""What is computed once before the first step: the latents of the pictures and the embeddings of the captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.families.table import Latent
from lib_lora.train.buckets import Buckets, Fit, Size
from lib_lora.train.dataset import Dataset, Picture, Problem
from lib_lora.train.pixels import Loaded, load_picture

PIXELS_AT_ONCE = 512 * 512
CAPTIONS_AT_ONCE = 16


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


@dataclass(frozen=True, slots=True)
class Captions:
    """The different captions, the empty one first.

    ids: (captions, tokens), int64; row_of: (pictures,), the caption of each picture; cut: the texts that were too long.
    """

    ids: Tensor
    row_of: Tensor
    cut: tuple[str, ...]


@torch.no_grad()
def encode_pictures(
    vae: AutoencoderKL,
    latent: Latent,
    dataset: Dataset,
    buckets: Buckets,
    progress: Callable[[int], None],
) -> Latents:
    """Encode each picture to the mean of its latent distribution, on the encoder's device.

    The values stay there, in the encoder's dtype. progress: called with the number of pictures done. Raises LoraError when not one
    picture can be read, and when a picture's latents are not finite.
    """
    batch = max(1, PIXELS_AT_ONCE // buckets.size**2)
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
        mean = vae.encode(pixels.to(weight) / 127.5 - 1.0).latent_dist.mean
        found |= dict(zip(same, (mean - latent.shift) * latent.scale, strict=True))
    return [found[n] for n in range(len(loaded))]


def tokenize(tokenizer: CLIPTokenizer, texts: Sequence[str]) -> Captions:
    """Tokenize one caption per picture, each different text once."""
    different = list(dict.fromkeys(["", *texts]))
    longest = tokenizer.model_max_length
    ids = tokenizer(
        different, padding="max_length", truncation=True, max_length=longest, return_tensors="pt"
    ).input_ids
    lengths = [len(each) for each in tokenizer(different).input_ids]
    cut = tuple(t for t, length in zip(different, lengths, strict=True) if length > longest)
    row = {text: n for n, text in enumerate(different)}
    row_of = torch.tensor([row[text] for text in texts])
    return Captions(ids, row_of, cut)


@torch.no_grad()
def encode_captions(text_encoder: CLIPTextModel, ids: Tensor) -> Tensor:
    """Return the embeddings (captions, tokens, width) of token ids, on the encoder's device and in its dtype."""
    ids = ids.to(next(text_encoder.parameters()).device)
    return torch.cat([text_encoder(part).last_hidden_state for part in ids.split(CAPTIONS_AT_ONCE)])


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
