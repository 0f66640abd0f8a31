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
from lib_lora.train.buckets import Buckets
from lib_lora.train.dataset import Dataset, Picture, Problem
from lib_lora.train.pixels import load_picture

PIXELS_AT_ONCE = 512 * 512
CAPTIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Latents:
    """The pictures that could be read, their latents (pictures, channels, height, width), and what was left out."""

    pictures: tuple[Picture, ...]
    values: Tensor
    problems: tuple[Problem, ...]


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
    vae: AutoencoderKL, latent: Latent, dataset: Dataset, size: int, progress: Callable[[int], None]
) -> Latents:
    """Encode each picture to the mean of its latent distribution, on the encoder's device.

    The values stay there, in the encoder's dtype. progress: called with the number of pictures done. Raises LoraError when not one
    picture can be read, and when a picture's latents are not finite.
    """
    weight = next(vae.parameters())
    batch = max(1, PIXELS_AT_ONCE // size**2)
    kept, problems, parts = [], list(dataset.problems), []
    for start in range(0, len(dataset.pictures), batch):
        squares = []
        for picture in dataset.pictures[start : start + batch]:
            try:
                squares.append(_pixels(load_picture(picture.file, Buckets(size, step=0)).image))
                kept.append(picture)
            except FileFormatError as error:
                problems.append(Problem(picture.file, str(error)))
        if squares:
            pixels = torch.stack(squares).to(weight) / 127.5 - 1.0
            mean = vae.encode(pixels).latent_dist.mean
            parts.append((mean - latent.shift) * latent.scale)
        progress(min(start + batch, len(dataset.pictures)))
    if not kept:
        raise LoraError(f"No picture can be read. {' '.join(f'{each}.' for each in problems[:5])}")
    return Latents(tuple(kept), _checked(torch.cat(parts), kept), tuple(problems))


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


def _checked(values: Tensor, pictures: Sequence[Picture]) -> Tensor:
    finite = values.isfinite().flatten(1).all(1).tolist()
    broken = [picture.file.name for picture, fine in zip(pictures, finite, strict=True) if not fine]
    if broken:
        raise LoraError(
            f"The encoder gave values that are not finite for {', '.join(broken[:5])}: compute in fp32, or use another VAE."
        )
    return values
