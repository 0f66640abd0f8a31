"""Stable Diffusion 3 Medium, 3.5 Medium and 3.5 Large: a transformer over picture and text, CLIP, OpenCLIP's CLIP and T5.

The text encoders are stored as transformers names them; many files hold the transformer alone, or with the autoencoder. 3.5
normalises queries and keys; its Medium has a second attention in the first blocks.
"""

from __future__ import annotations

from dataclasses import replace

from lib_lora.families.clip_rows import TRAINED as TRAINED_CLIP
from lib_lora.families.clip_rows import clip_rows
from lib_lora.families.mmdit_rows import BUFFERS, mmdit_rows
from lib_lora.families.mmdit_rows import TRAINED as TRAINED_MMDIT
from lib_lora.families.sd1 import VAE, VAE_ROWS
from lib_lora.families.t5_rows import t5_rows
from lib_lora.families.table import Component, Denoiser, Family, Latent, Signature, TextEncoder

TRANSFORMER = "model.diffusion_model."
CLIP_L = "text_encoders.clip_l.transformer."
CLIP_G = "text_encoders.clip_g.transformer."
T5 = "text_encoders.t5xxl.transformer."

FIRST = f"{TRANSFORMER}joint_blocks.0."
FUSED = f"{FIRST}x_block.attn.qkv.weight"
FUSED_TEXT = f"{FIRST}context_block.attn.qkv.weight"
NORM = f"{FIRST}x_block.attn.ln_q.weight"
SECOND = f"{FIRST}x_block.attn2.qkv.weight"
MATRIX = (None, None)

SD3 = Family(
    id="sd3",
    label="Stable Diffusion 3",
    signature=Signature({FUSED: MATRIX, FUSED_TEXT: MATRIX}, absent=(NORM, SECOND)),
    components=(
        Component("transformer", "lora_unet", "transformer", TRANSFORMER, mmdit_rows, BUFFERS),
        Component("te1", "lora_te1", "text_encoder", CLIP_L, clip_rows),
        Component("te2", "lora_te2", "text_encoder_2", CLIP_G, clip_rows),
        Component("te3", "lora_te3", "text_encoder_3", T5, t5_rows),
        Component("vae", "lora_vae", "vae", VAE, VAE_ROWS),
    ),
    latent=Latent(channels=16, scale=1.5305, shift=0.0609, patch=2),
    objective="flow",
    trained_by_default=TRAINED_MMDIT + TRAINED_CLIP,
    architecture="stable-diffusion-v3-medium",
    kohya_version="sd3",
    known_as=("stable-diffusion-v3", "stable-diffusion-3", "sd3", "3-"),
    denoiser=Denoiser(component="transformer", kind="mmdit"),
    # WebUI 1.10.1 stops at the ".alpha" of kohya's names (its issue 16317).
    dialect="diffusers",
    text_encoders=(
        TextEncoder(component="te1", layer=2, pooled="plain"),
        TextEncoder(component="te2", activation="gelu", padding=0, layer=2, pooled="projected"),
        TextEncoder(
            component="te3",
            kind="t5",
            activation="gated-gelu",
            padding=0,
            normalized=True,
            optional=True,
        ),
    ),
)

SD35_MEDIUM = replace(
    SD3,
    label="Stable Diffusion 3.5 Medium",
    signature=Signature({FUSED: MATRIX, FUSED_TEXT: MATRIX, NORM: (None,), SECOND: MATRIX}),
    architecture="stable-diffusion-v3.5-medium",
)

SD35_LARGE = replace(
    SD3,
    label="Stable Diffusion 3.5 Large",
    signature=Signature({FUSED: MATRIX, FUSED_TEXT: MATRIX, NORM: (None,)}, absent=(SECOND,)),
    architecture="stable-diffusion-v3.5-large",
)
