"""The epsilon objective of the DDPM families: noise levels, draws, and the weighted loss.

Ho et al., 2020, "Denoising Diffusion Probabilistic Models": x_t = sqrt(a) x_0 + sqrt(1 - a) eps, and the network predicts eps.
Hang et al., 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy": min(SNR, gamma) in the space of x_0 is
min(SNR, gamma) / SNR in the space of eps.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from lib_lora.formats.original import FIRST_BETA, LAST_BETA, TIMESTEPS


@dataclass(frozen=True, slots=True)
class Draws:
    """What one forward pass trains on: rows of the cache, timesteps, noise, and which rows lose their caption.

    rows, times, empty: (batch,); noise: (batch, channels, height, width).
    """

    rows: Tensor
    times: Tensor
    noise: Tensor
    empty: Tensor

    def to(self, device: torch.device) -> Draws:
        """Return the same draws on a device."""
        moved = (each.to(device) for each in (self.rows, self.times, self.noise, self.empty))
        return Draws(*moved)


def stream(seed: int, *names: object) -> torch.Generator:
    """Return the CPU generator of one purpose, such as stream(seed, "step", 12): no state is ever carried from step to step."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def noise_levels() -> Tensor:
    """Return the cumulative product of 1 - beta for each timestep, float64; betas are "scaled linear" (Rombach et al., 2022)."""
    betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, TIMESTEPS, dtype=torch.float64) ** 2
    return torch.cumprod(1.0 - betas, 0)  # (timesteps,)


def snr_weights(levels: Tensor, gamma: float) -> Tensor:
    """Return min(SNR, gamma) / SNR for each timestep; all ones when gamma is 0."""
    if gamma == 0:
        return torch.ones_like(levels)
    snr = levels / (1.0 - levels)
    return snr.clamp(max=gamma) / snr


def add_noise(latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
    """Return x_t. latents, noise: (batch, channels, height, width); levels: (batch,), the cumulative products at each row's t."""
    level = levels[:, None, None, None]
    return level.sqrt() * latents + (1.0 - level).sqrt() * noise


def weighted_loss(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over the batch of weight times each sample's own mean squared error.

    prediction, noise: (batch, channels, height, width); weights: (batch,).
    """
    error = (prediction.to(noise.dtype) - noise).square().mean(dim=(1, 2, 3))  # (batch,)
    return (error * weights).mean()


def training_draws(
    seed: int, position: int, order: Tensor, shape: torch.Size, drop: float
) -> Draws:
    """Draw one forward pass from the stream of its position alone.

    position: how many passes came before; order: (batch,) the rows to train on; shape: of the latents, (n, channels, height,
    width); drop: the share of rows whose caption is left out.
    """
    batch = len(order)
    draw = stream(seed, "pass", position)
    times = torch.randint(TIMESTEPS, (batch,), generator=draw)
    noise = torch.randn((batch, *shape[1:]), generator=draw)
    empty = torch.rand(batch, generator=draw) < drop
    return Draws(order, times, noise, empty)


def validation_draws(seed: int, count: int, shape: torch.Size) -> Draws:
    """Draw the fixed pairs of noise and timestep that the validation loss is taken on: timesteps spread evenly over all."""
    times = ((torch.arange(count) + 0.5) * TIMESTEPS / count).long()
    noise = torch.randn((count, *shape[1:]), generator=stream(seed, "validation"))
    rows = torch.randperm(count, generator=stream(seed, "validation rows")) % shape[0]
    return Draws(rows, times, noise, torch.zeros(count, dtype=torch.bool))


def rows_at(seed: int, start: int, count: int, rows: Tensor) -> Tensor:
    """Return `count` rows from position `start` of an endless list that shuffles `rows` anew for each epoch.

    rows: (n,) the rows of one epoch, repeats included. Epochs follow each other without a short batch between them.
    """
    length = len(rows)
    first, last = start // length, (start + count - 1) // length
    epochs = [
        rows[torch.randperm(length, generator=stream(seed, "epoch", epoch))]
        for epoch in range(first, last + 1)
    ]
    offset = start - first * length
    return torch.cat(epochs)[offset : offset + count]
