"""What a denoiser learns: how noise is mixed in, what is to be predicted, and how the error is weighted; and what a pass draws.

x_t = signal z + spread eps, with latents z and noise eps. The table `OBJECTIVES` has a row for each objective a family may have:

    epsilon  eps                     Ho et al., 2020, "Denoising Diffusion Probabilistic Models"; signal^2 + spread^2 = 1
    v        signal eps - spread z   Salimans and Ho, 2022, "Progressive Distillation for Fast Sampling of Diffusion Models"
    flow     eps - z                 Esser et al., 2024, "Scaling Rectified Flow Transformers"; signal = 1 - sigma, spread = sigma

Weights are min(SNR, gamma) in the space of z (Hang et al., 2023, "Efficient Diffusion Training via Min-SNR Weighting Strategy"):
min(SNR, gamma) / SNR in that of epsilon, min(SNR, gamma) / (SNR + 1) in that of v. A flow is weighted by how often a time is drawn.
Zero terminal SNR: Lin et al., 2023, "Common Diffusion Noise Schedules and Sample Steps are Flawed".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.families.table import ObjectiveName
from lib_lora.formats.original import FIRST_BETA, LAST_BETA, TIMESTEPS

# The shift of Stable Diffusion 3's released schedule: sigma' = s sigma / (1 + (s - 1) sigma).
FLOW_SHIFT = 3.0
VALIDATION_BATCH = 16


@dataclass(frozen=True, slots=True)
class Objective:
    """What a denoiser learns. Times are what it is told, (batch,).

    draw: times for a batch from a generator; spaced: so many times spread evenly over what `draw` draws; levels: times -> signal
    and spread, float64 on the CPU; target: (latents, noise, signal, spread) -> what is to be predicted; weight: (SNR, gamma) ->
    the weight of a sample.
    """

    draw: Callable[[torch.Generator, int], Tensor]
    spaced: Callable[[int], Tensor]
    levels: Callable[[Tensor], tuple[Tensor, Tensor]]
    target: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    weight: Callable[[Tensor, float], Tensor]

    def weights(self, times: Tensor, gamma: float) -> Tensor:
        """Return the weight of each sample, float64; all ones when gamma is 0."""
        if gamma == 0:
            return torch.ones(times.shape, dtype=torch.float64)
        signal, spread = self.levels(times)
        return self.weight((signal / spread).square(), gamma)


@cache
def noise_levels(zero_terminal: bool = False) -> Tensor:
    """Return the cumulative product of 1 - beta for each timestep, float64; betas are "scaled linear" (Rombach et al., 2022).

    zero_terminal: the roots are shifted and scaled, so that the first is kept and the last is 0 (Lin et al., 2023, algorithm 1).
    """
    betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, TIMESTEPS, dtype=torch.float64) ** 2
    levels = torch.cumprod(1.0 - betas, 0)  # (timesteps,)
    if not zero_terminal:
        return levels
    roots = levels.sqrt()
    first, last = roots[0], roots[-1]
    return ((roots - last) * first / (first - last)).square()


def _timesteps(generator: torch.Generator, batch: int) -> Tensor:
    return torch.randint(TIMESTEPS, (batch,), generator=generator)


def _spaced_timesteps(count: int) -> Tensor:
    return ((torch.arange(count) + 0.5) * TIMESTEPS / count).long()


def _diffusion(times: Tensor, zero_terminal: bool = False) -> tuple[Tensor, Tensor]:
    level = noise_levels(zero_terminal)[times]
    return level.sqrt(), (1.0 - level).sqrt()


def _flow_times(generator: torch.Generator, batch: int) -> Tensor:
    return _shifted(torch.sigmoid(torch.randn(batch, generator=generator, dtype=torch.float64)))


def _spaced_flow_times(count: int) -> Tensor:
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return _shifted(torch.sigmoid(torch.special.ndtri(shares)))


def _shifted(sigma: Tensor) -> Tensor:
    return TIMESTEPS * FLOW_SHIFT * sigma / (1.0 + (FLOW_SHIFT - 1.0) * sigma)


def _flow(times: Tensor) -> tuple[Tensor, Tensor]:
    sigma = times.double() / TIMESTEPS
    return 1.0 - sigma, sigma


def _noise(latents: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> Tensor:
    return noise


def _velocity(latents: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> Tensor:
    return signal * noise - spread * latents


def _direction(latents: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> Tensor:
    return noise - latents


def _epsilon_weight(snr: Tensor, gamma: float) -> Tensor:
    return torch.where(snr > gamma, gamma / snr, 1.0)


def _v_weight(snr: Tensor, gamma: float) -> Tensor:
    return snr.clamp(max=gamma) / (snr + 1.0)


def _even_weight(snr: Tensor, gamma: float) -> Tensor:
    return torch.ones_like(snr)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "epsilon": Objective(_timesteps, _spaced_timesteps, _diffusion, _noise, _epsilon_weight),
    "v": Objective(_timesteps, _spaced_timesteps, _diffusion, _velocity, _v_weight),
    "flow": Objective(_flow_times, _spaced_flow_times, _flow, _direction, _even_weight),
}


def objective_of(name: ObjectiveName, zero_terminal: bool = False) -> Objective:
    """Return an objective; raises UsageError for a zero terminal SNR where v is not predicted: only v says something there."""
    if zero_terminal and name != "v":
        raise UsageError(
            f"Zero terminal SNR needs a model that predicts v; this one predicts {name}."
        )
    objective = OBJECTIVES[name]
    if not zero_terminal:
        return objective
    return replace(objective, levels=partial(_diffusion, zero_terminal=True))


@dataclass(frozen=True, slots=True)
class Draws:
    """What one forward pass trains on: pictures, what the denoiser is told as its time, noise, and which lose their caption.

    rows, times, empty: (batch,); noise: (batch, channels, height, width); orders: (batch,), where among the orders of its caption a
    picture's is, from 0 to below 1, `None` for the first. All on the CPU.
    """

    rows: Tensor
    times: Tensor
    noise: Tensor
    empty: Tensor
    orders: Tensor | None = None


def stream(seed: int, *names: object) -> torch.Generator:
    """Return the CPU generator of one purpose, such as stream(seed, "step", 12): no state is ever carried from step to step."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def mixed(latents: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> Tensor:
    """Return x_t. latents, noise: (batch, channels, height, width); signal, spread: (batch, 1, 1, 1)."""
    return signal * latents + spread * noise


def weighted_loss(prediction: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over the batch of weight times each sample's own mean squared error.

    prediction, target: (batch, channels, height, width); weights: (batch,).
    """
    error = (prediction.to(target.dtype) - target).square().mean(dim=(1, 2, 3))  # (batch,)
    return (error * weights).mean()


def training_draws(
    seed: int,
    position: int,
    rows: Tensor,
    shape: Sequence[int],
    objective: Objective,
    drop: float = 0.0,
    offset: float = 0.0,
) -> Draws:
    """Draw one forward pass from the stream of its position alone.

    position: how many passes came before; rows: (batch,) the pictures to train on; shape: of a latent, (channels, height, width);
    drop: the share of captions left out; offset: the size of what is added to the noise of a whole channel, which the target
    holds too (Guttenberg, 2023, "Diffusion with Offset Noise").
    """
    batch = len(rows)
    draw = stream(seed, "pass", position)
    times = objective.draw(draw, batch)
    noise = torch.randn((batch, *shape), generator=draw)
    empty = torch.rand(batch, generator=draw) < drop
    if offset:
        noise = noise + offset * torch.randn((batch, shape[0], 1, 1), generator=draw)
    orders = torch.rand(batch, generator=draw, dtype=torch.float64)
    return Draws(rows, times, noise, empty, orders)


def validation_draws(
    seed: int,
    count: int,
    shapes: Sequence[Sequence[int]],
    objective: Objective,
    most: int = VALIDATION_BATCH,
) -> list[Draws]:
    """Draw the fixed pairs of noise and time that the validation loss is taken on, in batches of one shape: times spread evenly.

    shapes: (channels, height, width) of the latent of each picture; most: of a batch, which changes nothing of the draws.
    """
    draw, times = stream(seed, "validation"), objective.spaced(count)
    rows = torch.randperm(count, generator=stream(seed, "validation rows")) % len(shapes)
    found = []
    for shape in sorted({tuple(shapes[row]) for row in rows.tolist()}):
        same = torch.tensor(
            [n for n, row in enumerate(rows.tolist()) if tuple(shapes[row]) == shape]
        )
        noise = torch.randn((len(same), *shape), generator=draw)
        for part in torch.arange(len(same)).split(most):
            kept = torch.zeros(len(part), dtype=torch.bool)
            found.append(Draws(rows[same[part]], times[same[part]], noise[part], kept))
    return found


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


def batch_at(seed: int, position: int, batch: int, buckets: Sequence[Tensor]) -> Tensor:
    """Return the rows (batch,) of the forward pass after `position` others: all of one bucket, in an order of its own each round.

    buckets: the rows of one epoch that share a size, for each size. A round has as many passes of a bucket as fill one epoch of
    it; a bucket that does not come out even goes on where it stopped, so that every batch is full.
    """
    passes = torch.tensor([-(-len(rows) // batch) for rows in buckets])
    turns = torch.arange(len(buckets)).repeat_interleave(passes)
    number, place = divmod(position, len(turns))
    turns = turns[torch.randperm(len(turns), generator=stream(seed, "round", number))]
    bucket = int(turns[place])
    before = number * int(passes[bucket]) + int((turns[:place] == bucket).sum())
    return rows_at(seed, before * batch, batch, buckets[bucket])
