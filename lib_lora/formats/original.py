"""A layer's tensor in the original layout, and writing a model's diffusers state dicts as one checkpoint in it.

The schedule's buffers that CompVis' LDM registers are written too, so that the key set is that of the released files. They follow
from the noise schedule: Ho et al., 2020, "Denoising Diffusion Probabilistic Models", equations 4 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lib_lora.errors import FileFormatError
from lib_lora.families.clip_rows import POSITION_IDS
from lib_lora.families.sd1 import SD1
from lib_lora.families.table import Component, Family, Part, Row

FIRST_BETA, LAST_BETA, TIMESTEPS = 0.00085, 0.012, 1000
POSITIONS = "text_model.embeddings.position_embedding.weight"

States = Mapping[str, Mapping[str, Tensor]]
"""Component name ("unet", "te1", "vae") -> diffusers key -> tensor."""


def layer_view(stored: Tensor, part: Part) -> Tensor:
    """Return the part of a checkpoint tensor that is one layer's, in the layer's shape; writing to it writes to `stored`.

    `swap_halves` is not undone, since no view can: see `swapped`.
    """
    if part.pointwise:
        stored = stored[..., 0, 0]
    if part.transpose:
        stored = stored.t()
    rows = stored.shape[0] // part.of
    return stored.narrow(0, part.index * rows, rows)


def swapped(tensor: Tensor, part: Part) -> Tensor:
    """Exchange the halves of dimension 0 where the part says so; its own inverse."""
    return tensor.roll(tensor.shape[0] // 2, 0) if part.swap_halves else tensor


def to_original(states: States, family: Family = SD1) -> dict[str, Tensor]:
    """Return the tensors of a whole model by their keys in the original layout, dtypes kept, buffers in float32.

    A text encoder's keys may carry `text_model.` (transformers 4) or not (transformers 5). Raises FileFormatError when a tensor
    has no place or a component is missing.
    """
    schedule = schedule_buffers()
    tensors = {key: schedule[key] for key in family.buffers}
    for component in family.components:
        if component.name not in states:
            raise FileFormatError(f"The model has no component {component.name!r}.")
        stored = _component(component, _with_wrapper(component, states[component.name]))
        tensors |= {component.checkpoint + key: tensor for key, tensor in stored.items()}
    return tensors


def schedule_buffers() -> dict[str, Tensor]:
    """Return the float32 buffers of the scaled linear noise schedule, each (1000,), computed in float64."""
    betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, TIMESTEPS, dtype=torch.float64) ** 2
    alphas = 1.0 - betas
    kept = alphas.cumprod(0)
    before = torch.cat([torch.ones(1, dtype=torch.float64), kept[:-1]])
    variance = betas * (1.0 - before) / (1.0 - kept)
    buffers = {
        "betas": betas,
        "alphas_cumprod": kept,
        "alphas_cumprod_prev": before,
        "sqrt_alphas_cumprod": kept.sqrt(),
        "sqrt_one_minus_alphas_cumprod": (1.0 - kept).sqrt(),
        "log_one_minus_alphas_cumprod": (1.0 - kept).log(),
        "sqrt_recip_alphas_cumprod": (1.0 / kept).sqrt(),
        "sqrt_recipm1_alphas_cumprod": (1.0 / kept - 1.0).sqrt(),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": variance.clamp(min=1e-20).log(),
        "posterior_mean_coef1": betas * before.sqrt() / (1.0 - kept),
        "posterior_mean_coef2": (1.0 - before) * alphas.sqrt() / (1.0 - kept),
    }
    return {key: buffer.float() for key, buffer in buffers.items()}


def _with_wrapper(component: Component, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict by the names of the rows, refusing what has none; position ids are counted, not read."""
    names = {f"{row.path}.{kind}" for row in component.rows for kind in ("weight", "bias")}
    names |= {path for path, _ in component.buffers}
    named = {}
    for key, tensor in state.items():
        name = key if key in names else f"text_model.{key}"
        if name in names:
            named[name] = tensor
        elif not key.endswith("position_ids"):
            raise FileFormatError(
                f"The {component.name} has {key!r}, which has no place in the family."
            )
    if POSITION_IDS in names and POSITIONS in named:
        named[POSITION_IDS] = torch.arange(named[POSITIONS].shape[0])[None]
    return named


def _component(component: Component, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a component's tensors by original key, the parts of a fused one put together."""
    there = {row.weight for row in component.rows if f"{row.path}.weight" in state}
    pieces: dict[str, dict[int, Tensor]] = {}
    for row in component.rows:
        part = _part(row, there)
        for kind, key, lies in (("weight", row.weight, part), ("bias", row.bias, part.of_bias)):
            tensor = state.get(f"{row.path}.{kind}")
            if tensor is not None:
                pieces.setdefault(key, {})[lies.index] = _stored(tensor, lies)
    tensors = {key: _joined(parts) for key, parts in pieces.items()}
    return tensors | {key: state[path] for path, key in component.buffers if path in state}


def _joined(parts: Mapping[int, Tensor]) -> Tensor:
    return torch.cat([parts[n] for n in sorted(parts)]) if len(parts) > 1 else parts[0]


def _part(row: Row, there: set[str]) -> Part:
    if row.lacking is not None and row.lacking[0] not in there:
        return row.lacking[1]
    return row.part


def _stored(tensor: Tensor, part: Part) -> Tensor:
    """Return a layer's tensor as the checkpoint holds it."""
    if part.swap_halves:
        tensor = tensor.roll(tensor.shape[0] // 2, 0)
    if part.transpose:
        tensor = tensor.t()
    return tensor[..., None, None] if part.pointwise else tensor
