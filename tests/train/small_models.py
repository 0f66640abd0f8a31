"""Random denoisers of each family, with facts about them as a plan takes them."""

from functools import partial

import torch
from diffusers import SD3Transformer2DModel, UNet2DConditionModel

from lib_lora.families import sizes
from lib_lora.families.sd1 import SD1
from lib_lora.families.sd2 import SD2
from lib_lora.families.sd3 import SD3, SD35_LARGE, SD35_MEDIUM
from lib_lora.families.sdxl import SDXL
from lib_lora.train.memory_parts import ModelFacts

ATTENTION, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
UP = {ATTENTION: "CrossAttnUpBlock2D", PLAIN: "UpBlock2D"}
CONTEXT = 64


def _unet(channels, depths, mid, **rest):
    types = [ATTENTION if depth else PLAIN for depth in depths]
    return UNet2DConditionModel(
        block_out_channels=channels,
        down_block_types=types,
        up_block_types=[UP[each] for each in reversed(types)],
        transformer_layers_per_block=[depth or 1 for depth in depths],
        cross_attention_dim=rest.pop("context", CONTEXT),
        attention_head_dim=rest.pop("heads", 4),
        **rest,
    )


def sd1(channels=(32, 64, 96, 96), context=CONTEXT, heads=4):
    """Return a UNet of Stable Diffusion 1, and its facts."""
    depths = (1, 1, 1, 0)
    listed = partial(sizes.unet, channels, depths, 1, context, pointwise=True)
    module = _unet(channels, depths, 1, context=context, heads=heads)
    return module, _facts(SD1, {"unet": listed})


def sd2():
    """Return a UNet of Stable Diffusion 2, and its facts."""
    channels, depths = (32, 64, 64, 96), (1, 1, 1, 0)
    module = _unet(channels, depths, 1, use_linear_projection=True)
    return module, _facts(SD2, {"unet": partial(sizes.unet, channels, depths, 1, CONTEXT)})


def sdxl():
    """Return a UNet of Stable Diffusion XL, and its facts."""
    channels, depths = (32, 64, 96), (0, 2, 3)
    module = _unet(
        channels,
        depths,
        3,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + 32,
    )
    listed = partial(sizes.unet, channels, depths, 3, CONTEXT, vector=6 * 8 + 32)
    return module, _facts(SDXL, {"unet": listed})


def sd3():
    """Return a transformer of Stable Diffusion 3, and its facts."""
    module = SD3Transformer2DModel(
        num_layers=3, attention_head_dim=16, num_attention_heads=4, caption_projection_dim=64
    )
    return module, _facts(SD3, {"transformer": partial(sizes.mmdit, 64, 3)}, module)


def sd35_medium():
    """Return a transformer of Stable Diffusion 3.5 Medium, whose first two blocks attend twice, and its facts."""
    return _sd35(SD35_MEDIUM, 2)


def sd35_large():
    """Return a transformer of Stable Diffusion 3.5 Large, and its facts."""
    return _sd35(SD35_LARGE, 0)


def _sd35(family, twice):
    module = SD3Transformer2DModel(
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        caption_projection_dim=64,
        qk_norm="rms_norm",
        dual_attention_layers=tuple(range(twice)),
    )
    listed = partial(sizes.mmdit, 64, 3, normalised=16, second=twice)
    return module, _facts(family, {"transformer": listed}, module)


def _facts(family, components, module=None):
    buffers = {"transformer": module.pos_embed.pos_embed.numel()} if module else {}
    return ModelFacts(family, sizes.Published(family, components).layers(), buffers)


def inputs(module, side, batch, dtype=torch.float32):
    """Return what one pass of such a denoiser takes, for a latent of this width and height."""
    config = module.config
    times = torch.full((batch,), 500)
    noisy = torch.randn(batch, config.in_channels, side, side, dtype=dtype)
    if "joint_attention_dim" in config:
        text = torch.randn(batch, 154, config.joint_attention_dim, dtype=dtype)
        pooled = torch.randn(batch, config.pooled_projection_dim, dtype=dtype)
        return {
            "hidden_states": noisy,
            "encoder_hidden_states": text,
            "pooled_projections": pooled,
            "timestep": times,
        }
    text = torch.randn(batch, 77, config.cross_attention_dim, dtype=dtype)
    told = {}
    if config.addition_embed_type == "text_time":
        told = {"time_ids": torch.ones(batch, 6), "text_embeds": torch.randn(batch, 32)}
        told = {name: value.to(dtype) for name, value in told.items()}
    return {
        "sample": noisy,
        "timestep": times,
        "encoder_hidden_states": text,
        "added_cond_kwargs": told,
    }
