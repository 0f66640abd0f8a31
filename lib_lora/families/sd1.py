"""Stable Diffusion 1: one CLIP text encoder, a UNet with attention at the first three of four levels, 1x1 convolutions around it."""

from __future__ import annotations

from lib_lora.families.clip_rows import clip_rows
from lib_lora.families.table import Component, Family, Latent, Shapes
from lib_lora.families.unet_rows import unet_rows
from lib_lora.families.vae_rows import vae_rows

UNET = "model.diffusion_model."
CLIP = "cond_stage_model.transformer."
VAE = "first_stage_model."

LATENT_CHANNELS = 4


def detect(shapes: Shapes) -> bool:
    """Tell whether a checkpoint has SD1's structure, whatever its widths and the depth of its text encoder."""
    conv_in = shapes.get(f"{UNET}input_blocks.0.0.weight", ())
    proj_in = shapes.get(f"{UNET}input_blocks.1.1.proj_in.weight", ())
    return (
        len(conv_in) == 4
        and conv_in[1] == LATENT_CHANNELS
        and len(proj_in) == 4
        and f"{CLIP}text_model.embeddings.token_embedding.weight" in shapes
        and f"{UNET}label_emb.0.0.weight" not in shapes
    )


SD1 = Family(
    id="sd1",
    label="Stable Diffusion 1",
    detect=detect,
    components=(
        Component("unet", "lora_unet", "unet", UNET, unet_rows((1, 1, 1, 0), mid_depth=1)),
        Component("te1", "lora_te", "text_encoder", CLIP, clip_rows()),
        Component("vae", "lora_vae", "vae", VAE, vae_rows(levels=4)),
    ),
    latent=Latent(channels=LATENT_CHANNELS, scale=0.18215),
    objective="epsilon",
    trained_by_default=(
        *(f"attn{n}.{part}" for n in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")),
        *(".proj_in", ".proj_out", "ff.net.0.proj", "ff.net.2"),
        *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")),
        *("mlp.fc1", "mlp.fc2"),
    ),
    architecture="stable-diffusion-v1",
    kohya_version="sd_v1",
)
