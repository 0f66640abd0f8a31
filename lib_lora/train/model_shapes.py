"""The configurations of a base model's modules as its shapes tell them.

Shapes tell every number of a model but how attention is divided among heads; that is the family's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lib_lora.errors import FileFormatError
from lib_lora.families.table import Component, Denoiser, Family, TextEncoder
from lib_lora.formats.checkpoint import Checkpoint

START_TOKEN, END_TOKEN = 49406, 49407
TIME_NUMBERS = 6
"""How many numbers SDXL is told of a picture's sizes; each becomes a vector."""

Config = dict[str, Any]
Configs = dict[str, Config]
"""Component ("unet", "te1", "vae") -> its diffusers or transformers configuration."""
Shapes = Mapping[str, tuple[int, ...]]
"""A component's layers: path -> shape of the weight; and what it has besides: key -> shape."""


def configs_from_shapes(checkpoint: Checkpoint) -> Configs:
    """Return the configurations that a checkpoint's shapes imply, with its family's heads; of the components that it holds."""
    family = checkpoint.family
    denoiser = family.denoiser
    if denoiser is None:
        raise FileFormatError(
            f"{checkpoint.path.name} is a {family.label} checkpoint, which cannot be trained."
        )
    shapes = {each.name: _shapes_of(checkpoint, each) for each in family.components}
    configs: Configs = {
        denoiser.component: DENOISERS[denoiser.kind](
            shapes[denoiser.component], denoiser, _pooled(checkpoint)
        ),
        "vae": vae_config(shapes["vae"], family),
    }
    for encoder in family.text_encoders:
        if shapes[encoder.component]:
            configs[encoder.component] = ENCODERS[encoder.kind](shapes[encoder.component], encoder)
    return configs


def _pooled(checkpoint: Checkpoint) -> int:
    """Return the width of the projected text; 0 where none is."""
    layers = (
        checkpoint.layers.get(f"{encoder.component}.text_projection")
        for encoder in checkpoint.family.text_encoders
        if encoder.pooled == "projected"
    )
    return next((layer.shape[0] for layer in layers if layer is not None), 0)


def _shapes_of(checkpoint: Checkpoint, component: Component) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a component's layers by path, and of what it has besides layers by its key."""
    layers = checkpoint.layers.values()
    stored = checkpoint.header.shapes
    return {each.path: each.shape for each in layers if each.component == component.name} | {
        key: stored[component.checkpoint + original]
        for key, original in component.buffers
        if component.checkpoint + original in stored
    }


def _unet_config(shapes: Shapes, denoiser: Denoiser, pooled: int) -> Config:
    levels = _count(shapes, "down_blocks.{}.resnets.0.conv1")
    channels = [shapes[f"down_blocks.{n}.resnets.0.conv1"][0] for n in range(levels)]
    inner = "down_blocks.{}.attentions.0.transformer_blocks.{{}}.attn2.to_k"
    depths = [_count(shapes, inner.format(n)) for n in range(levels)]
    first = next(n for n, depth in enumerate(depths) if depth)
    context = shapes[inner.format(first).format(0)][1]
    joined = [("CrossAttn" if depth else "") for depth in depths]
    heads = [denoiser.heads_of(width) for width in channels]
    return {
        "block_out_channels": channels,
        "cross_attention_dim": context,
        "attention_head_dim": denoiser.heads or heads,
        "layers_per_block": 2,
        "down_block_types": [f"{kind}DownBlock2D" for kind in joined],
        "up_block_types": [f"{kind}UpBlock2D" for kind in reversed(joined)],
        "transformer_layers_per_block": [depth or 1 for depth in depths],
        "use_linear_projection": len(shapes[f"down_blocks.{first}.attentions.0.proj_in"]) == 2,
        "in_channels": shapes["conv_in"][1],
        "out_channels": shapes["conv_out"][0],
        "sample_size": 64,
    }


def _sized_unet_config(shapes: Shapes, denoiser: Denoiser, pooled: int) -> Config:
    """Return the same with what tells sizes and pooled text: one vector of both, whose text has the width `pooled`."""
    config = _unet_config(shapes, denoiser, pooled)
    vector = shapes["add_embedding.linear_1"][1]
    return {
        **config,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": (vector - pooled) // TIME_NUMBERS,
        "projection_class_embeddings_input_dim": vector,
        "sample_size": 128,
    }


def _mmdit_config(shapes: Shapes, denoiser: Denoiser, pooled: int) -> Config:
    width, channels, patch, _ = shapes["pos_embed.proj"]
    depth = _count(shapes, "transformer_blocks.{}.attn.to_q")
    narrow = shapes.get("transformer_blocks.0.attn.norm_q")
    heads = width // narrow[0] if narrow else denoiser.heads_of(width)
    config: Config = {
        "num_layers": depth,
        "num_attention_heads": heads,
        "attention_head_dim": width // heads,
        "joint_attention_dim": shapes["context_embedder"][1],
        "caption_projection_dim": shapes["context_embedder"][0],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1"][1],
        "in_channels": channels,
        "out_channels": channels,
        "patch_size": patch,
        "pos_embed_max_size": math.isqrt(shapes["pos_embed.pos_embed"][1]),
        "sample_size": 128,
    }
    second = [n for n in range(depth) if f"transformer_blocks.{n}.attn2.to_q" in shapes]
    # What older versions of diffusers do not know is told only where it is needed.
    return (
        config
        | ({"qk_norm": "rms_norm"} if narrow else {})
        | ({"dual_attention_layers": second} if second else {})
    )


def vae_config(shapes: Shapes, family: Family) -> Config:
    """Return the configuration of an autoencoder."""
    levels = _count(shapes, "encoder.down_blocks.{}.resnets.0.conv1")
    config: Config = {
        "block_out_channels": [
            shapes[f"encoder.down_blocks.{n}.resnets.0.conv1"][0] for n in range(levels)
        ],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "layers_per_block": 2,
        "latent_channels": family.latent.channels,
        "scaling_factor": family.latent.scale,
        "sample_size": 512,
    }
    if "quant_conv" in shapes:
        return config
    return {
        **config,
        "shift_factor": family.latent.shift,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }


def _clip_config(shapes: Shapes, encoder: TextEncoder) -> Config:
    tokens, width = shapes["text_model.embeddings.token_embedding"]
    # The projection is (out, in).
    projected = shapes.get("text_projection", (width,))[0]
    return {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": shapes["text_model.encoder.layers.0.mlp.fc1"][0],
        "num_hidden_layers": _count(shapes, "text_model.encoder.layers.{}.mlp.fc1"),
        "num_attention_heads": max(1, width // CLIP_HEAD_WIDTH),
        "max_position_embeddings": shapes["text_model.embeddings.position_embedding"][0],
        "hidden_act": encoder.activation,
        "projection_dim": projected,
        "bos_token_id": START_TOKEN,
        "eos_token_id": END_TOKEN,
        "pad_token_id": encoder.padding,
    }


def _t5_config(shapes: Shapes, encoder: TextEncoder) -> Config:
    embedding = "shared" if "shared" in shapes else "encoder.embed_tokens"
    first = "encoder.block.0.layer.0.SelfAttention"
    buckets, heads = shapes[f"{first}.relative_attention_bias"]
    return {
        "vocab_size": shapes[embedding][0],
        "d_model": shapes[embedding][1],
        "d_kv": shapes[f"{first}.q"][0] // heads,
        "d_ff": shapes["encoder.block.0.layer.1.DenseReluDense.wo"][1],
        "num_layers": _count(shapes, "encoder.block.{}.layer.0.SelfAttention.q"),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": encoder.activation,
    }


CLIP_HEAD_WIDTH = 64
DENOISERS: dict[str, Callable[[Shapes, Denoiser, int], Config]] = {
    "unet": _unet_config,
    "sized_unet": _sized_unet_config,
    "mmdit": _mmdit_config,
}
ENCODERS: dict[str, Callable[[Shapes, TextEncoder], Config]] = {
    "clip": _clip_config,
    "t5": _t5_config,
}


def _count(shapes: Shapes, path: str) -> int:
    """Return how many numbers from 0 on make a path of a layer."""
    number = 0
    while path.format(number) in shapes:
        number += 1
    return number
