"""Writing a model's diffusers state dicts as one checkpoint in the original layout.

The schedule's buffers that CompVis' LDM registers are written too, so that the key set is that of the released files. They follow
from the noise schedule: Ho et al., 2020, "Denoising Diffusion Probabilistic Models", equations 4 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lib_lora.errors import FileFormatError
from lib_lora.families.sd1 import CLIP, SD1
from lib_lora.families.table import Component, Family, Part

FIRST_BETA, LAST_BETA, TIMESTEPS = 0.00085, 0.012, 1000
POSITION_IDS = "text_model.embeddings.position_ids"

States = Mapping[str, Mapping[str, Tensor]]
"""Component name ("unet", "te1", "vae") -> diffusers key -> tensor."""


def to_original(states: States, family: Family = SD1) -> dict[str, Tensor]:
    """Return the tensors of a whole model by their keys in the original layout, dtypes kept, buffers in float32.

    The text encoder's keys may carry `text_model.` (transformers 4) or not (transformers 5). Raises FileFormatError when a tensor
    has no place or a component is missing.
    """
    tensors = schedule_buffers()
    for component in family.components:
        if component.name not in states:
            raise FileFormatError(f"The model has no component {component.name!r}.")
        tensors |= _component(component, states[component.name])
    positions = tensors[f"{CLIP}text_model.embeddings.position_embedding.weight"].shape[0]
    tensors[CLIP + POSITION_IDS] = torch.arange(positions)[None]
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


def _component(component: Component, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    places = {f"{row.path}.weight": (row.weight, row.part) for row in component.rows}
    places |= {f"{row.path}.bias": (row.bias, Part()) for row in component.rows}
    tensors = {}
    for key, tensor in state.items():
        name = key if key in places else f"text_model.{key}"
        if name == POSITION_IDS:
            continue
        if name not in places:
            raise FileFormatError(
                f"The {component.name} has {key!r}, which has no place in the family."
            )
        original, part = places[name]
        tensors[component.checkpoint + original] = (
            tensor[..., None, None] if part.pointwise else tensor
        )
    return tensors
