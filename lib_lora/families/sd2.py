"""Stable Diffusion 2: SD1's UNet with linear layers around its attention, and an OpenCLIP text encoder.

Neither keys nor shapes tell whether a model predicts v (the 768 models) or epsilon (the 512 models); where nothing else does, v is
assumed, as the tools of the field do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lib_lora.families.clip_rows import TRAINED as TRAINED_CLIP
from lib_lora.families.clip_rows import openclip_rows
from lib_lora.families.sd1 import (
    LATENT_CHANNELS,
    SCHEDULE_BUFFERS,
    UNET,
    UNET_ROWS,
    VAE,
    VAE_ROWS,
)
from lib_lora.families.table import Component, Denoiser, Family, Latent, Signature, TextEncoder
from lib_lora.families.unet_rows import TRAINED as TRAINED_UNET

OPENCLIP = "cond_stage_model.model."
# The file holds one block more, whose output and projection the model never uses.
TEXT_ROWS = partial(openclip_rows, layers=23, projection=False)

SD2 = Family(
    id="sd2",
    label="Stable Diffusion 2",
    signature=Signature(
        present={
            f"{UNET}input_blocks.0.0.weight": (None, LATENT_CHANNELS, None, None),
            f"{UNET}input_blocks.1.1.proj_in.weight": (None, None),
            f"{OPENCLIP}token_embedding.weight": (None, None),
        },
        absent=(f"{UNET}label_emb.0.0.weight",),
    ),
    components=(
        Component("unet", "lora_unet", "unet", UNET, UNET_ROWS),
        Component("te1", "lora_te", "text_encoder", OPENCLIP, TEXT_ROWS),
        Component("vae", "lora_vae", "vae", VAE, VAE_ROWS),
    ),
    latent=Latent(channels=LATENT_CHANNELS, scale=0.18215),
    objective="v",
    trained_by_default=TRAINED_UNET + TRAINED_CLIP,
    architecture="stable-diffusion-v2-768-v",
    kohya_version="sd_v2_v",
    known_as=("stable-diffusion-v2", "sd_v2", "sd_2", "ss_v2"),
    buffers=SCHEDULE_BUFFERS,
    denoiser=Denoiser(component="unet", kind="unet"),
    # The block that is left out above is the last, so that the last one left is the penultimate of the file.
    text_encoders=(TextEncoder(component="te1", activation="gelu", padding=0, normalized=True),),
)

SD2_EPSILON = replace(
    SD2, objective="epsilon", architecture="stable-diffusion-v2-512", kohya_version="sd_v2"
)
