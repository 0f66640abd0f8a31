"""The optimizer: AdamW over one flat tensor per group, and the rate at each step.

Loshchilov and Hutter, 2019, "Decoupled Weight Decay Regularization". A network has hundreds of small tensors; they are laid end to
end in one buffer, so that a step, a clipping and a state are a few operations whatever the number of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lib_lora.train.config import OptimizerConfig, ScheduleConfig

_STATE = ("exp_avg", "exp_avg_sq")


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
    """AdamW with the rate of each step, the clipping, and a state of plain tensors."""

    def __init__(
        self, groups: Iterable[Group], config: OptimizerConfig, schedule: ScheduleConfig
    ) -> None:
        self.groups = tuple(groups)
        self._clip, self._schedule = config.clip, schedule
        self._adamw = torch.optim.AdamW(
            [{"params": [group.flat]} for group in self.groups],
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
        )

    def step(self, step: int) -> float:
        """Change the tensors by their gradients at the rate of this 0-based step, clear the gradients and return the first rate."""
        gradients = [grad for group in self.groups if (grad := group.flat.grad) is not None]
        if self._clip > 0:
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
            share = (self._clip / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(share)
        factor = rate_share(step, self._schedule)
        for group, options in zip(self.groups, self._adamw.param_groups, strict=True):
            options["lr"] = group.peak * factor
        self._adamw.step()
        for gradient in gradients:
            gradient.zero_()
        return self.groups[0].peak * factor

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs besides the step: values and both moments of every group."""
        found = {f"{group.name}.values": group.flat for group in self.groups}
        for group in self.groups:
            moments = self._adamw.state.get(group.flat, {})
            found |= {
                f"{group.name}.{key}": moments.get(key, torch.zeros_like(group.flat))
                for key in _STATE
            }
        return found

    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Take back what `state` returned after `step` steps."""
        for group in self.groups:
            group.flat.copy_(state[f"{group.name}.values"])
            moments = {key: state[f"{group.name}.{key}"].to(group.flat) for key in _STATE}
            self._adamw.state[group.flat] = {"step": torch.tensor(float(step)), **moments}
