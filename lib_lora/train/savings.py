"""The savings of memory that a configuration asks for, put on the modules of a base model."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import partial

import torch
from diffusers import AutoencoderKL, ModelMixin
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib_lora.errors import UsageError
from lib_lora.families.costs import COSTS
from lib_lora.train.config_run import RunConfig
from lib_lora.train.memory import TILE
from lib_lora.train.memory_parts import stored_small
from lib_lora.train.precision import DTYPES, store_small


def prepare_denoiser(denoiser: ModelMixin, config: RunConfig, device: torch.device) -> None:
    """Store the frozen weights as asked and choose how attention is computed, before the module is on the device.

    Raises UsageError when xformers is asked for and cannot be used.
    """
    if config.storage == "fp8":
        store_small(denoiser, stored_small)
    if config.attention == "xformers":
        if device.type != "cuda" or importlib.util.find_spec("xformers") is None:
            raise UsageError(
                "run.attention is xformers, which needs the xformers library and a CUDA device. Accepted here: sdp."
            )
        denoiser.enable_xformers_memory_efficient_attention()


def compute_blocks_again(modules: Mapping[str, nn.Module]) -> None:
    """Let the blocks of trained components keep their inputs alone, and compute the rest again in the backward pass.

    modules: by component name. Nothing is drawn at random inside, so that the second pass gives the same bits as the first.
    """
    for component, module in modules.items():
        block = re.compile(COSTS[component].block)
        for path, inner in module.named_modules():
            if block.fullmatch(path):
                inner.forward = partial(
                    checkpoint, inner.forward, use_reentrant=False, preserve_rng_state=False
                )


def prepare_vae(vae: AutoencoderKL, config: RunConfig, tile: int = TILE) -> AutoencoderKL:
    """Return the autoencoder in the precision that is asked for, with one picture at a time or in tiles where that is asked for.

    tile: width and height in pixels.
    """
    if config.vae_precision != "same":
        nn.Module.to(vae, DTYPES[config.vae_precision])
    if config.vae_slicing:
        vae.enable_slicing()
    if config.vae_tiling:
        vae.enable_tiling()
        vae.tile_sample_min_size = tile
        vae.tile_latent_min_size = tile // 8
    return vae
