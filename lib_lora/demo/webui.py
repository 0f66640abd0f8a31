"""Lays out a base model for AUTOMATIC1111's WebUI: the checkpoint, and beside it the configuration its loader wants.

The embedded model has the layout of SD1 but other widths, which v1.10.1 cannot guess from the tensors. It takes a YAML file of the
checkpoint's stem in the form of the original latent diffusion code; the widths come from the same JSON files that diffusers reads.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from string import Template

from lib_lora.demo.outputs import whole

MODEL_DIR = Path(__file__).with_name("model")
CLIP_DIR = MODEL_DIR / "tokenizer"

_SIDECAR = Template("""\
model:
  target: ldm.models.diffusion.ddpm.LatentDiffusion
  params:
    linear_start: 0.00085
    linear_end: 0.0120
    timesteps: 1000
    num_timesteps_cond: 1
    log_every_t: 200
    first_stage_key: jpg
    cond_stage_key: txt
    image_size: $latent_side
    channels: 4
    cond_stage_trainable: false
    conditioning_key: crossattn
    scale_factor: 0.18215
    use_ema: false
    unet_config:
      target: ldm.modules.diffusionmodules.openaimodel.UNetModel
      params:
        image_size: $latent_side
        in_channels: 4
        out_channels: 4
        model_channels: $unet_width
        channel_mult: $unet_levels
        num_res_blocks: 2
        attention_resolutions: [4, 2, 1]
        num_heads: $heads
        use_spatial_transformer: true
        transformer_depth: 1
        context_dim: $context
        use_checkpoint: false
        legacy: false
    first_stage_config:
      target: ldm.models.autoencoder.AutoencoderKL
      params:
        embed_dim: 4
        ddconfig:
          double_z: true
          z_channels: 4
          resolution: $side
          in_channels: 3
          out_ch: 3
          ch: $vae_width
          ch_mult: $vae_levels
          num_res_blocks: 2
          attn_resolutions: []
          dropout: 0.0
        lossconfig:
          target: torch.nn.Identity
    cond_stage_config:
      target: ldm.modules.encoders.modules.FrozenCLIPEmbedder
      params:
        version: $clip
""")


def sidecar(clip: Path = CLIP_DIR) -> str:
    """Return the WebUI's YAML for the embedded model; `clip` is the folder with config, vocab and merges."""
    unet, vae = _config("unet"), _config("vae")
    widths, vae_widths = unet["block_out_channels"], vae["block_out_channels"]
    return _SIDECAR.substitute(
        latent_side=unet["sample_size"],
        unet_width=widths[0],
        unet_levels=[width // widths[0] for width in widths],
        heads=unet["attention_head_dim"],
        context=unet["cross_attention_dim"],
        side=vae["sample_size"],
        vae_width=vae_widths[0],
        vae_levels=[width // vae_widths[0] for width in vae_widths],
        clip=json.dumps(str(clip.resolve())),
    )


def write_webui_folder(checkpoint: Path, folder: Path) -> Path:
    """Put a copy of the checkpoint and its sidecar into a folder and return the copy's path; each file appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / checkpoint.name
    with whole(copy) as part:
        shutil.copyfile(checkpoint, part)
    with whole(copy.with_suffix(".yaml")) as part:
        part.write_text(sidecar(), encoding="utf-8")
    return copy


def _config(component: str) -> dict:
    return json.loads((MODEL_DIR / component / "config.json").read_text(encoding="utf-8"))
