"""The optimizer: AdamW, or what a library makes of it, over one flat tensor per group, and the rate at each step.

Loshchilov and Hutter, 2019, "Decoupled Weight Decay Regularization"; Dettmers et al., 2022, "8-bit Optimizers via Block-wise
Quantization"; Mishchenko and Defazio, 2024, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner"; Chen et al., 2023,
"Symbolic Discovery of Optimization Algorithms" (Lion). A network has hundreds of small tensors; they are laid end to end in one
buffer, so that a step, a clipping and a state are a few operations whatever the number of layers. Every optimizer here treats each
number apart, or sums over all of them, so that the buffer changes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.train.config_learning import (
    OPTIMIZER_PACKAGES,
    OptimizerConfig,
    ScheduleConfig,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")
# What Prodigy keeps of all groups together.
_FOUND = ("d", "d_max", "d_numerator", "k")
FOUND, SCALER = "found", "scaler"


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that share a peak rate; `flat` holds their values and `flat.grad` their gradients."""

    name: str
    peak: float
    flat: Tensor


def flatten(name: str, peak: float, tensors: Sequence[Tensor]) -> Group:
    """Move tensors of one dtype and device into one buffer; they stay the leaves that autograd fills, as views into it."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    flat.grad = torch.zeros_like(flat)
    start = 0
    for tensor in tensors:
        stop = start + tensor.numel()
        tensor.data = flat[start:stop].view(tensor.shape)
        tensor.grad = flat.grad[start:stop].view(tensor.shape)
        start = stop
    return Group(name, peak, flat)


def rate_share(step: int, schedule: ScheduleConfig) -> float:
    """Return the share of the peak rate at a 0-based step: a linear warm-up, then half a cosine to zero, or flat."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.decay == "constant":
        return 1.0
    done = (step - schedule.warmup) / (schedule.steps - schedule.warmup)
    return 0.5 * (1.0 + math.cos(math.pi * done))


class Optimizer:
    """An optimizer with the rate of each step, the clipping, the scaled loss of fp16, and a state of plain tensors."""

    def __init__(
        self,
        groups: Iterable[Group],
        config: OptimizerConfig,
        schedule: ScheduleConfig,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Take groups on one device. scaler: of a computation in fp16. Raises UsageError when its library cannot be had."""
        self.groups = tuple(groups)
        self._clip, self._schedule, self._scaler = config.clip, schedule, scaler
        self._type = config.type
        # Prodigy tells on the standard output that its decay is decoupled.
        with contextlib.redirect_stdout(sys.stderr):
            self._inner = _make(config, self.groups)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, which is scaled where the precision needs it."""
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def step(self, step: int) -> float:
        """Change the tensors by their gradients at the rate of this 0-based step, clear the gradients and return the first rate.

        Where the scaled loss overflowed, the tensors stay as they are and the scale falls.
        """
        if self._scaler:
            self._scaler.unscale_(self._inner)
        gradients = [grad for group in self.groups if (grad := group.flat.grad) is not None]
        if self._clip > 0:
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
            share = (self._clip / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(share)
        factor = rate_share(step, self._schedule)
        for group, options in zip(self.groups, self._inner.param_groups, strict=True):
            options["lr"] = group.peak * factor
        if self._scaler:
            self._scaler.step(self._inner)
            self._scaler.update()
        else:
            self._inner.step()
        for gradient in gradients:
            gradient.zero_()
        return self.groups[0].peak * factor

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs besides the step: values and moments of every group, and the scale of the loss."""
        found = {f"{group.name}.values": group.flat for group in self.groups}
        for group in self.groups:
            zeros = torch.zeros_like(group.flat)
            fresh = dict.fromkeys(_MOMENTS, zeros) if self._type == "adamw" else {}
            known = self._inner.state.get(group.flat, fresh)
            found |= {
                f"{group.name}.{key}": value
                for key, value in known.items()
                if isinstance(value, Tensor) and key != "step"
            }
        if self._type == "prodigy":
            numbers = [float(self._inner.param_groups[0][key]) for key in _FOUND]
            found[FOUND] = torch.tensor(numbers, dtype=torch.float64)
        if self._scaler:
            told = self._scaler.state_dict()
            taken = self._inner.state.get(self.groups[0].flat, {}).get("step", 0)
            numbers = [told["scale"], told["_growth_tracker"], float(taken)]
            found[SCALER] = torch.tensor(numbers, dtype=torch.float64)
        return found

    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Take back what `state` returned after `step` steps."""
        taken = float(step)
        if self._scaler:
            scale, growth, taken = state[SCALER].tolist()
            told = {"scale": scale, "_growth_tracker": int(growth)}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **told})
        for group in self.groups:
            group.flat.copy_(state[f"{group.name}.values"])
            own = f"{group.name}."
            moments = {
                key.removeprefix(own): value.to(group.flat.device, copy=True)
                for key, value in state.items()
                if key.startswith(own) and key != f"{own}values"
            }
            if moments:
                counted = torch.tensor(taken) if self._type == "adamw" else int(taken)
                self._inner.state[group.flat] = {"step": counted, **moments}
        if self._type == "prodigy":
            numbers = dict(zip(_FOUND, state[FOUND].tolist(), strict=True))
            for options in self._inner.param_groups:
                options.update(numbers, k=int(numbers["k"]))


def _make(config: OptimizerConfig, groups: Iterable[Group]) -> Any:
    """Return the optimizer of a type; raises UsageError where it cannot work."""
    parts = [{"params": [group.flat]} for group in groups]
    # The rate of each step is set before it; some take none that is 0 to begin with.
    usual: dict[str, Any] = {
        "lr": 1.0,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.type == "adamw":
        return torch.optim.AdamW(parts, **usual, eps=config.epsilon)
    if config.type == "adamw8bit" and any(not group.flat.is_cuda for group in groups):
        raise UsageError(
            "optimizer.type is adamw8bit, which needs a CUDA device; found a CPU. Accepted here: adamw, prodigy, lion."
        )
    library = _library(config.type)
    if config.type == "adamw8bit":
        return library.optim.AdamW8bit(parts, **usual, eps=config.epsilon)
    if config.type == "lion":
        return library.Lion(parts, **usual)
    # The corrections that its authors advise for diffusion models.
    return library.Prodigy(
        parts, **usual, eps=config.epsilon, use_bias_correction=True, safeguard_warmup=True
    )


def _library(type_: str) -> Any:
    """Import what an optimizer needs besides torch; raises UsageError when that fails."""
    package = OPTIMIZER_PACKAGES[type_]
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise UsageError(
            f"optimizer.type is {type_}, which needs the {package} library; it cannot be loaded: {error}. Accepted here: adamw."
        ) from error
