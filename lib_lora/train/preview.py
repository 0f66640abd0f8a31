"""Sample pictures made while a network is in training, with what training has in memory anyway; nothing of the training is touched.

The sampler is deterministic and the same for every objective: a prediction and the noisy latents are two equations for the latents
and the noise that are in them, and mixing these again at the next level is a step (Song et al., 2021, "Denoising Diffusion Implicit
Models", sigma = 0; for a flow it is Euler's method).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor, nn

from lib_lora.families.table import Latent
from lib_lora.formats.original import TIMESTEPS
from lib_lora.formats.place import new_file
from lib_lora.train.config_outputs import SamplesConfig
from lib_lora.train.loop import Watcher
from lib_lora.train.objective import Objective, mixed

log = logging.getLogger(__name__)

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noisy latents, times, rows of the texts) -> prediction; the first text is the negative one, then come the prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What draws the samples. size: of a picture in pixels; device, compute: where and in which dtype is predicted."""

    config: SamplesConfig
    size: int
    objective: Objective
    latent: Latent
    predict: Predict
    vae: Any
    device: torch.device
    compute: torch.dtype

    def draw(self, folder: Path, step: int, watcher: Watcher) -> list[Path]:
        """Draw every prompt with the network as it is after so many steps, but for files that are there, and return the files.

        What goes wrong is told in a note and never ends the training.
        """
        files = []
        prompts = self.config.texts[1:]
        for number, prompt in enumerate(prompts):
            watcher.stage("sampling", number, len(prompts))
            seed = self.config.seed + number
            file = folder / f"{step:06d}-{number:02d}.png"
            if file.exists():
                files.append(file)
                continue
            try:
                _write(file, self.picture(number + 1, seed), step, prompt, seed)
            except Exception as error:
                log.exception("A sample could not be drawn.")
                watcher.note(f"No sample of {prompt!r} after step {step}: {error}")
                continue
            files.append(file)
            watcher.sample(str(file), step, prompt, seed)
        return files

    @torch.no_grad()
    def picture(self, row: int, seed: int) -> Image.Image:
        """Return the picture of a row of the texts."""
        side = self.size // self.latent.factor
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((1, self.latent.channels, side, side), generator=generator)
        latents = self._walk(noise.to(self.device), row)
        return self._decode(latents)

    def _walk(self, noise: Tensor, row: int) -> Tensor:
        """Return the latents that noise (1, channels, height, width) is of, seen through the network."""
        times = sampling_times(self.objective, self.config.steps)
        signals, spreads = (level.tolist() for level in self.objective.levels(times))
        levels = list(zip(signals, spreads, strict=True))
        latents, x = torch.zeros_like(noise), noise
        for place, time in enumerate(times):
            signal, spread = levels[place]
            prediction = self._guided(x, time, row)
            latents, found = solve(self.objective, x, prediction, signal, spread)
            if place + 1 < len(times):
                x = mixed(latents, found, *map(torch.tensor, levels[place + 1]))
        return latents

    def _guided(self, x: Tensor, time: Tensor, row: int) -> Tensor:
        """Return the prediction, moved from the negative text towards the prompt (Ho and Salimans, 2022)."""
        rows = torch.tensor([0, row])
        both = torch.cat([x, x]).to(self.compute)
        prediction = self.predict(both, time.expand(2).to(self.device), rows).to(x.dtype)
        negative, positive = prediction.chunk(2)
        return negative + self.config.guidance * (positive - negative)

    def _decode(self, latents: Tensor) -> Image.Image:
        """Decode with the autoencoder, which is on the device for no longer than that."""
        weight = next(self.vae.parameters())
        nn.Module.to(self.vae, self.device)
        try:
            scaled = latents / self.latent.scale + self.latent.shift
            pixels = self.vae.decode(scaled.to(weight.dtype)).sample[0]
        finally:
            nn.Module.to(self.vae, weight.device)
        if not bool(pixels.isfinite().all()):
            raise ValueError("the picture came out as no numbers")
        levels = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).byte()
        return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())


def solve(
    objective: Objective, x: Tensor, prediction: Tensor, signal: float, spread: float
) -> tuple[Tensor, Tensor]:
    """Return the latents and the noise of which x is mixed and the prediction is made.

    x = signal z + spread e and p = a z + b e, where a and b are what is to be predicted of latents alone and of noise alone.
    """
    one, none = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    level = (torch.tensor(signal, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64))
    a = float(objective.target(one, none, *level))
    b = float(objective.target(none, one, *level))
    determinant = signal * b - spread * a
    latents = (b * x - spread * prediction) / determinant
    noise = (signal * prediction - a * x) / determinant
    return latents, noise


def sampling_times(objective: Objective, count: int) -> Tensor:
    """Return so many times from pure noise down, spread as those are that training draws: (count,)."""
    times = objective.spaced(count).flip(0)
    times[0] = TIMESTEPS if times.is_floating_point() else TIMESTEPS - 1
    return times


def _write(file: Path, picture: Image.Image, step: int, prompt: str, seed: int) -> None:
    file.parent.mkdir(exist_ok=True)
    told = PngInfo()
    told.add_itxt("parameters", f"{prompt}\nSeed: {seed}, Step: {step}")
    with new_file(file) as out:
        picture.save(out, "PNG", pnginfo=told)
