"""The steps of a training, from tensors alone: draw, predict, weigh, update, and what is watched and asked on the way."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lib_lora.errors import LoraError
from lib_lora.train.config import TrainConfig
from lib_lora.train.memory import pictures_at_once
from lib_lora.train.objective import (
    VALIDATION_BATCH,
    Draws,
    Objective,
    batch_at,
    mixed,
    training_draws,
    validation_draws,
    weighted_loss,
)
from lib_lora.train.optim import Optimizer
from lib_lora.train.pace import WARM_UP_STEPS, slow_because

Ending = Literal["done", "stopped", "paused"]

READ_EVERY_ON_GPU = 10
TIMED_READINGS = 20


class Watcher(Protocol):
    """Who follows a training and may ask something of it between two steps."""

    def stage(self, name: str, step: int = 0, total: int = 0) -> None:
        """Hear that a stage begins or has come this far."""
        ...

    def step(self, step: int, total: int, loss: float, rate: float, seconds_left: float) -> None:
        """Hear that a step is done; steps count from 1."""
        ...

    def pace(
        self, seconds_per_step: float, steps_per_epoch: int, total: int, sentence: str
    ) -> None:
        """Hear once, when the first steps are over, how fast it goes; the sentence says why it is slow, and is empty if it is not."""
        ...

    def validation(self, step: int, loss: float) -> None:
        """Hear the loss on the fixed draws after so many steps."""
        ...

    def saved(self, file: str, step: int) -> None:
        """Hear that the network was written as it is after so many steps."""
        ...

    def sample(self, file: str, step: int, prompt: str, seed: int) -> None:
        """Hear that a picture was made with the network as it is after so many steps."""
        ...

    def disk(self, needed: int, free: int) -> None:
        """Hear how many bytes will still be written into the run's folder, and how many its disk has free."""
        ...

    def note(self, sentence: str) -> None:
        """Hear a sentence for the person."""
        ...

    def asked(self) -> str | None:
        """Return the oldest command that is not answered yet."""
        ...

    def answer(self, result: str) -> None:
        """Answer the command that `asked` returned last."""
        ...


class Keeper(Protocol):
    """Who writes a training to disk."""

    def state(self, step: int) -> None:
        """Write what a resumed run needs after so many steps."""
        ...

    def network(self, step: int) -> str:
        """Write the network as it is after so many steps and return the file."""
        ...

    def sample(self, step: int, watcher: Watcher) -> None:
        """Make pictures with the network as it is after so many steps, once that is safe on the disk."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the loss is computed from, in ordinary memory, however many pictures there are; each step's own go to the device.

    denoise: (noisy latents, times, pictures, caption rows on the CPU) -> prediction; latents: of each picture (channels, height,
    width), in the dtype of the loss; captions: (pictures, orders), the caption rows of each, row 0 being the empty caption; buckets:
    the pictures of one epoch, repeats included, those of one size in each; device, compute: where and in which dtype is predicted.
    """

    denoise: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    latents: Sequence[Tensor]
    captions: Tensor
    buckets: Sequence[Tensor]
    objective: Objective
    gamma: float
    device: torch.device
    compute: torch.dtype = torch.float32

    def loss(self, draws: Draws) -> Tensor:
        """Return the weighted loss of one forward pass as a scalar tensor."""
        latents = torch.stack([self.latents[row] for row in draws.rows.tolist()]).to(self.device)
        noise, times = draws.noise.to(latents), draws.times.to(self.device)
        signal, spread = (
            level.to(latents)[:, None, None, None] for level in self.objective.levels(draws.times)
        )
        noisy = mixed(latents, noise, signal, spread).to(self.compute)
        prediction = self.denoise(noisy, times, draws.rows.to(self.device), self.rows(draws))
        target = self.objective.target(latents, noise, signal, spread)
        weights = self.objective.weights(draws.times, self.gamma).to(latents)
        return weighted_loss(prediction, target, weights)

    def rows(self, draws: Draws) -> Tensor:
        """Return the caption row of each sample: (batch,)."""
        of_pictures = self.captions[draws.rows]  # (batch, orders)
        if draws.orders is None:
            rows = of_pictures[:, 0]
        else:
            places = (draws.orders * of_pictures.shape[1]).long()
            rows = of_pictures.gather(1, places[:, None])[:, 0]
        return rows.masked_fill(draws.empty, 0)


class Loop:
    """A training at some step."""

    def __init__(self, material: Material, optimizer: Optimizer, config: TrainConfig) -> None:
        self.material, self.optimizer, self.config = material, optimizer, config
        self.done = 0
        self.validations: dict[int, float] = {}
        self._pending: list[tuple[int, Tensor, float]] = []
        self._since = time.monotonic()
        self._durations: deque[float] = deque(maxlen=TIMED_READINGS)
        self._ran, self._drawing = 0, 0.0

    def resume(
        self, done: int, tensors: Mapping[str, Tensor], validations: Mapping[int, float]
    ) -> None:
        """Go on after `done` steps from what the optimizer's `state` and `validations` were then; raises LoraError if they do not fit."""
        try:
            self.optimizer.restore(tensors, done)
        except (KeyError, RuntimeError, ValueError) as error:
            raise LoraError(
                f"The state after step {done} is that of another network: the base model or the configuration was changed since. "
                "Put them back, or train anew."
            ) from error
        self.done, self.validations = done, dict(validations)

    def run(self, watcher: Watcher, keeper: Keeper) -> Ending:
        """Train to the last step, or to where someone asks to stop or pause; raises LoraError when the loss is not finite."""
        steps, saving = self.config.schedule.steps, self.config.saving
        self._since = time.monotonic()
        if self.done == 0:
            self._validate(0, watcher)
        for done in range(self.done + 1, steps + 1):
            self._pending.append((done, *self.update(done - 1, self._drawn(done - 1))))
            self.done = done
            if len(self._pending) >= self._read_every() or self._ran < WARM_UP_STEPS:
                self._read_losses(watcher)
            if _due(done, self.config.loss.validation_every) or done == steps:
                self._validate(done, watcher)
            if _due(done, saving.every) and done < steps:
                self._read_losses(watcher)
                watcher.saved(keeper.network(done), done)
            if _due(done, saving.state_every) and done < steps:
                self._read_losses(watcher)
                keeper.state(done)
            if _due(done, self.config.samples.every) and done < steps:
                self._read_losses(watcher)
                keeper.sample(done, watcher)
                self._since = time.monotonic()
            if done < steps and (ending := self._obey(done, watcher, keeper)):
                return ending
        self._read_losses(watcher)
        return "done"

    def draws(self, step: int) -> list[Draws]:
        """Return what each forward pass of a 0-based step trains on."""
        schedule, seed, passes = self.config.schedule, self.config.run.seed, []
        for part in range(schedule.accumulate):
            position = step * schedule.accumulate + part
            rows = batch_at(seed, position, schedule.batch, self.material.buckets)
            shape, objective = self.material.latents[int(rows[0])].shape, self.material.objective
            drop, offset = self.config.data.caption_dropout, self.config.loss.noise_offset
            passes.append(training_draws(seed, position, rows, shape, objective, drop, offset))
        return passes

    def update(self, step: int, passes: Sequence[Draws]) -> tuple[Tensor, float]:
        """Take one optimizer step on the mean over passes; return its loss (a scalar tensor, not yet read) and rate."""
        total = torch.zeros((), device=self.material.device)
        for draws in passes:
            loss = self.material.loss(draws) / len(passes)
            self.optimizer.backward(loss)
            total = total + loss.detach()
        return total, self.optimizer.step(step)

    @torch.no_grad()
    def validate(self) -> float:
        """Return the loss on the fixed draws."""
        material, count = self.material, self.config.loss.validation_draws
        shapes = [latent.shape for latent in material.latents]
        # No more at once than a step has, or the first of all passes would be the one without room.
        fill = max(self.config.schedule.batch, pictures_at_once(self.config.data.size))
        most = min(fill, VALIDATION_BATCH)
        parts = validation_draws(self.config.run.seed, count, shapes, material.objective, most)
        return sum(float(material.loss(part)) * len(part.rows) for part in parts) / count

    def _read_every(self) -> int:
        """Reading a loss makes the CPU wait for the GPU, so there it is done for several steps at once."""
        return READ_EVERY_ON_GPU if self.material.device.type == "cuda" else 1

    def _read_losses(self, watcher: Watcher) -> None:
        if not self._pending:
            return
        total, (pending, self._pending) = self.config.schedule.steps, (self._pending, [])
        losses = [float(tensor) for _, tensor, _ in pending]
        pace = self._pace(len(pending))
        for (step, _, rate), loss in zip(pending, losses, strict=True):
            if not math.isfinite(loss):
                raise LoraError(
                    f"The loss is {loss} at step {step}: lower the rates, or compute in fp32. "
                    "What was saved before is still there."
                )
            watcher.step(step, total, loss, rate, (total - step) * pace)
        self._tell_pace(len(pending), pace, watcher)

    def _pace(self, steps: int) -> float:
        """Return the seconds per step, a mean over the last readings; this one is of `steps` steps."""
        now = time.monotonic()
        self._durations.append((now - self._since) / steps)
        self._since = now
        return sum(self._durations) / len(self._durations)

    def _drawn(self, step: int) -> list[Draws]:
        since = time.monotonic()
        passes = self.draws(step)
        self._drawing += time.monotonic() - since
        return passes

    def _tell_pace(self, steps: int, pace: float, watcher: Watcher) -> None:
        """Let the first steps not count, for they set the device up, and tell the pace of those that followed, once."""
        warming, before = self._ran < WARM_UP_STEPS, self._ran
        self._ran += steps
        if warming:
            self._durations.clear()
            self._drawing = 0.0
        elif before < 2 * WARM_UP_STEPS <= self._ran:
            schedule, counted = self.config.schedule, self._ran - WARM_UP_STEPS
            pictures = sum(len(bucket) for bucket in self.material.buckets)
            per_epoch = math.ceil(pictures / (schedule.batch * schedule.accumulate))
            on_cpu = self.material.device.type == "cpu"
            sentence = slow_because(self.config, on_cpu, self._drawing / counted / pace)
            watcher.pace(pace, per_epoch, schedule.steps, sentence)

    def _validate(self, done: int, watcher: Watcher) -> None:
        if self.config.loss.validation_draws:
            self._read_losses(watcher)
            self.validations[done] = self.validate()
            watcher.validation(done, self.validations[done])
            self._since = time.monotonic()

    def _obey(self, done: int, watcher: Watcher, keeper: Keeper) -> Ending | None:
        while asked := watcher.asked():
            self._read_losses(watcher)
            keeper.state(done)
            if asked == "pause":
                watcher.answer(f"Paused after step {done}.")
                return "paused"
            file = keeper.network(done)
            watcher.saved(file, done)
            watcher.answer(f"Saved {file} after step {done}.")
            if asked == "stop":
                return "stopped"
        return None


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
