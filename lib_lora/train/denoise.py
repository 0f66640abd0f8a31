"""How each kind of denoiser is asked for its prediction, and what it is told of a picture's sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from diffusers import SD3Transformer2DModel, UNet2DConditionModel
from torch import Tensor, nn

from lib_lora.families.detect import with_objective
from lib_lora.formats.original import TIMESTEPS
from lib_lora.train.base_model import BaseModel
from lib_lora.train.buckets import Fit
from lib_lora.train.objective import stream
from lib_lora.train.text import TOKENS, Encoded

LIKE = 0.5

Call = Callable[[nn.Module, Tensor, Tensor, Encoded, Tensor], Tensor]
"""(denoiser, noisy latents, times, text, sizes) -> prediction."""


def size_numbers(fit: Fit) -> list[int]:
    """Return what SDXL is told of a picture, in pixels: original height and width, what was cut off above and left, target."""
    original, bucket = fit.original, fit.bucket
    return [original.height, original.width, fit.top, fit.left, bucket.height, bucket.width]


def context_width(denoiser: UNet2DConditionModel | SD3Transformer2DModel) -> int:
    """Return the width of the text that a denoiser reads."""
    config = denoiser.config
    return config.get("joint_attention_dim") or config["cross_attention_dim"]


def settled(base: BaseModel) -> BaseModel:
    """Return the model with what it predicts found out, where nothing tells: its denoiser is asked once, where it lies.

    At the last time the input is nearly all noise. Who predicts the noise gives the input back; v is nearly all of the picture.
    """
    if not base.untold:
        return base
    family, dtype = base.checkpoint.family, next(base.denoiser.parameters()).dtype
    device = next(base.denoiser.parameters()).device
    draw = stream(0, "what it predicts")
    noise = torch.randn((1, family.latent.channels, 16, 16), generator=draw).to(device, dtype)
    text = torch.zeros((1, TOKENS, context_width(base.denoiser)), device=device, dtype=dtype)
    times = torch.tensor([TIMESTEPS - 1], device=device)
    with torch.no_grad():
        answer = base.denoiser(noise, times, encoder_hidden_states=text).sample.float().flatten()
    likeness = torch.nn.functional.cosine_similarity(answer, noise.float().flatten(), dim=0)
    found = with_objective(family, "epsilon" if float(likeness) > LIKE else "v")
    note = (
        f"Nothing says what this model predicts; it answers as one that predicts {found.objective}."
    )
    checkpoint = replace(base.checkpoint, family=found)
    return replace(base, checkpoint=checkpoint, untold=False, notes=(*base.notes, note))


def _unet(unet: nn.Module, noisy: Tensor, times: Tensor, text: Encoded, sizes: Tensor) -> Tensor:
    return unet(noisy, times, encoder_hidden_states=text.tokens.to(noisy)).sample


def _sized_unet(
    unet: nn.Module, noisy: Tensor, times: Tensor, text: Encoded, sizes: Tensor
) -> Tensor:
    assert text.pooled is not None  # the family's table reads it
    told = {"text_embeds": text.pooled.to(noisy), "time_ids": sizes}
    tokens = text.tokens.to(noisy)
    return unet(noisy, times, encoder_hidden_states=tokens, added_cond_kwargs=told).sample


def _mmdit(
    transformer: nn.Module, noisy: Tensor, times: Tensor, text: Encoded, sizes: Tensor
) -> Tensor:
    assert text.pooled is not None  # the family's table reads it
    return transformer(
        hidden_states=noisy,
        # In float64 the embedding of the time would not fit the model's.
        timestep=times.to(torch.float32),
        encoder_hidden_states=text.tokens.to(noisy),
        pooled_projections=text.pooled.to(noisy),
    ).sample


CALLS: dict[str, Call] = {"unet": _unet, "sized_unet": _sized_unet, "mmdit": _mmdit}
"""By the kind of a family's denoiser."""
