"""Stable Diffusion XL, base and refiner: a UNet that is told sizes and pooled text, with attention of several blocks.

The base has three levels and two text encoders, CLIP and OpenCLIP; the refiner four levels and OpenCLIP alone, which is called the
second one as elsewhere.
"""

from __future__ import annotations

from functools import partial

from lib_lora.families.clip_rows import BUFFERS, clip_rows, openclip_rows
from lib_lora.families.clip_rows import TRAINED as TRAINED_CLIP
from lib_lora.families.sd1 import LATENT_CHANNELS, UNET, VAE, VAE_ROWS
from lib_lora.families.table import Component, Denoiser, Family, Latent, Signature, TextEncoder
from lib_lora.families.unet_rows import TRAINED as TRAINED_UNET
from lib_lora.families.unet_rows import unet_rows

CLIP = "conditioner.embedders.0.transformer."
OPENCLIP = "conditioner.embedders.1.model."
REFINER_OPENCLIP = "conditioner.embedders.0.model."
UNET_ROWS = partial(unet_rows, (0, 2, 10), mid_depth=10)
REFINER_UNET_ROWS = partial(unet_rows, (0, 4, 4, 0), mid_depth=4)
# What Kolors and Playground 2.5 add to the same UNet.
OTHERS = (f"{UNET}encoder_hid_proj.weight", "edm_mean")

SDXL = Family(
    id="sdxl",
    label="Stable Diffusion XL",
    signature=Signature(
        present={
            f"{UNET}input_blocks.0.0.weight": (None, LATENT_CHANNELS, None, None),
            f"{UNET}label_emb.0.0.weight": (None, None),
            f"{UNET}output_blocks.0.1.proj_in.weight": (None, None),
            f"{CLIP}text_model.embeddings.token_embedding.weight": (None, None),
            f"{OPENCLIP}token_embedding.weight": (None, None),
        },
        absent=OTHERS,
    ),
    components=(
        Component("unet", "lora_unet", "unet", UNET, UNET_ROWS),
        Component("te1", "lora_te1", "text_encoder", CLIP, clip_rows, BUFFERS),
        Component("te2", "lora_te2", "text_encoder_2", OPENCLIP, openclip_rows),
        Component("vae", "lora_vae", "vae", VAE, VAE_ROWS),
    ),
    latent=Latent(channels=LATENT_CHANNELS, scale=0.13025, wide=True),
    objective="epsilon",
    trained_by_default=TRAINED_UNET + TRAINED_CLIP,
    architecture="stable-diffusion-xl-v1-base",
    kohya_version="sdxl_base_v1-0",
    known_as=("stable-diffusion-xl-v1-base", "sdxl"),
    denoiser=Denoiser(component="unet", kind="sized_unet", zeros_when_dropped=True),
    text_encoders=(
        TextEncoder(component="te1", layer=2),
        TextEncoder(component="te2", activation="gelu", padding=0, layer=2, pooled="projected"),
    ),
)

SDXL_REFINER = Family(
    id="sdxl-refiner",
    label="Stable Diffusion XL refiner",
    signature=Signature(
        present={
            f"{UNET}input_blocks.0.0.weight": (None, LATENT_CHANNELS, None, None),
            f"{UNET}label_emb.0.0.weight": (None, None),
            f"{UNET}output_blocks.3.1.proj_in.weight": (None, None),
            f"{UNET}output_blocks.11.0.in_layers.0.weight": (None,),
            f"{REFINER_OPENCLIP}token_embedding.weight": (None, None),
        },
        absent=OTHERS,
    ),
    components=(
        Component("unet", "lora_unet", "unet", UNET, REFINER_UNET_ROWS),
        Component("te2", "lora_te2", "text_encoder_2", REFINER_OPENCLIP, openclip_rows),
        Component("vae", "lora_vae", "vae", VAE, VAE_ROWS),
    ),
    latent=Latent(channels=LATENT_CHANNELS, scale=0.13025, wide=True),
    objective="epsilon",
    trained_by_default=TRAINED_UNET + TRAINED_CLIP,
    architecture="stable-diffusion-xl-v1-refiner",
    kohya_version="sdxl_refiner_v1-0",
    known_as=("stable-diffusion-xl-v1-refiner", "sdxl_refiner"),
)
