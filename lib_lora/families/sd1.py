"""Stable Diffusion 1: one CLIP text encoder, a UNet with attention at the first three of four levels, 1x1 convolutions around it.

Its inpainting models see a mask and the masked picture besides the latent: nine input channels. A few old files lack the
`text_model.` in the keys of the text encoder.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lib_lora.families.clip_rows import BUFFERS, WRAPPER, clip_rows
from lib_lora.families.clip_rows import TRAINED as TRAINED_CLIP
from lib_lora.families.table import Component, Denoiser, Family, Latent, Signature, TextEncoder
from lib_lora.families.unet_rows import TRAINED as TRAINED_UNET
from lib_lora.families.unet_rows import unet_rows
from lib_lora.families.vae_rows import vae_rows

UNET = "model.diffusion_model."
CLIP = "cond_stage_model.transformer."
VAE = "first_stage_model."

UNET_ROWS = partial(unet_rows, (1, 1, 1, 0), mid_depth=1)
VAE_ROWS = partial(vae_rows, levels=4)

LATENT_CHANNELS = 4
INPAINTING_CHANNELS = 9
# The buffers of the noise schedule that CompVis' LDM registers.
SCHEDULE_BUFFERS = (
    *("betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod"),
    *("sqrt_one_minus_alphas_cumprod", "log_one_minus_alphas_cumprod"),
    *("sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod"),
    *("posterior_variance", "posterior_log_variance_clipped"),
    *("posterior_mean_coef1", "posterior_mean_coef2"),
)


def _signature(channels: int, wrapper: str = WRAPPER) -> Signature:
    return Signature(
        present={
            f"{UNET}input_blocks.0.0.weight": (None, channels, None, None),
            f"{UNET}input_blocks.1.1.proj_in.weight": (None, None, None, None),
            f"{CLIP}{wrapper}embeddings.token_embedding.weight": (None, None),
        },
        absent=(f"{UNET}label_emb.0.0.weight",),
    )


SD1 = Family(
    id="sd1",
    label="Stable Diffusion 1",
    signature=_signature(LATENT_CHANNELS),
    components=(
        Component("unet", "lora_unet", "unet", UNET, UNET_ROWS),
        Component("te1", "lora_te", "text_encoder", CLIP, clip_rows, BUFFERS),
        Component("vae", "lora_vae", "vae", VAE, VAE_ROWS),
    ),
    latent=Latent(channels=LATENT_CHANNELS, scale=0.18215),
    objective="epsilon",
    trained_by_default=TRAINED_UNET + TRAINED_CLIP,
    architecture="stable-diffusion-v1",
    kohya_version="sd_v1",
    known_as=("stable-diffusion-v1", "sd_v1", "sd_1", "ss_v1"),
    buffers=SCHEDULE_BUFFERS,
    denoiser=Denoiser(component="unet", kind="unet", heads=8),
    text_encoders=(TextEncoder(component="te1", normalized=True, skips=True),),
)

SD1_INPAINTING = replace(
    SD1,
    label="Stable Diffusion 1 inpainting",
    signature=_signature(INPAINTING_CHANNELS),
    architecture="stable-diffusion-v1-inpainting",
    denoiser=None,
)

SD1_UNWRAPPED = replace(
    SD1,
    signature=_signature(LATENT_CHANNELS, wrapper=""),
    components=tuple(
        replace(component, unwritten=WRAPPER) if component.name == "te1" else component
        for component in SD1.components
    ),
)
