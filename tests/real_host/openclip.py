"""Small models with OpenCLIP's text encoder: Stable Diffusion 2 that predicts v, and XL, of which it is the second encoder.

Their weights are random. The WebUI builds such encoders by open_clip, which knows a model by its name: configurations of ours go into
a folder that `inside/main.py` adds to those that it reads.
"""

import json
from dataclasses import replace
from string import Template

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from lib_lora.demo.webui import CLIP_DIR
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.formats.original import to_original
from lib_lora.formats.stream import write_tensors
from lib_lora.networks.lora import LORA
from tests.real_host.models import COMPUTED, Network, made
from tests.train.families import KINDS, modules

VOCABULARY, POOLED = 49408, 40
FUSED = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
# Networks that act in sight of these weights, which are small.
UNET, ENCODERS = Network(LORA, 0.1), Network(LORA, 0.3, seed=2)

_FIRST_STAGE = """\
      params:
        embed_dim: 4
        ddconfig:
          double_z: true
          z_channels: 4
          resolution: 64
          in_channels: 3
          out_ch: 3
          ch: 32
          ch_mult: [1, 1, 1, 1]
          num_res_blocks: 2
          attn_resolutions: []
          dropout: 0.0
        lossconfig:
          target: torch.nn.Identity
"""
_SD2 = f"""\
model:
  target: ldm.models.diffusion.ddpm.LatentDiffusion
  params:
    parameterization: v
    linear_start: 0.00085
    linear_end: 0.0120
    num_timesteps_cond: 1
    log_every_t: 200
    timesteps: 1000
    first_stage_key: jpg
    cond_stage_key: txt
    image_size: 8
    channels: 4
    cond_stage_trainable: false
    conditioning_key: crossattn
    scale_factor: 0.18215
    use_ema: false
    unet_config:
      target: ldm.modules.diffusionmodules.openaimodel.UNetModel
      params:
        image_size: 8
        in_channels: 4
        out_channels: 4
        model_channels: 32
        attention_resolutions: [4, 2, 1]
        num_res_blocks: 2
        channel_mult: [1, 1, 2, 4]
        num_head_channels: 32
        use_spatial_transformer: true
        use_linear_in_transformer: true
        transformer_depth: 1
        context_dim: 32
        use_checkpoint: false
        legacy: false
    first_stage_config:
      target: ldm.models.autoencoder.AutoencoderKL
{_FIRST_STAGE}\
    cond_stage_config:
      target: ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder
      params:
        arch: loom-sd2
        layer: penultimate
"""
_SIZES = "".join(
    f"""\
          - is_trainable: false
            input_key: {key}
            target: sgm.modules.encoders.modules.ConcatTimestepEmbedderND
            params:
              outdim: 8
"""
    for key in ("original_size_as_tuple", "crop_coords_top_left", "target_size_as_tuple")
)
_DENOISER = "sgm.modules.diffusionmodules"
_SDXL = Template(f"""\
model:
  target: sgm.models.diffusion.DiffusionEngine
  params:
    scale_factor: 0.13025
    disable_first_stage_autocast: true
    denoiser_config:
      target: {_DENOISER}.denoiser.DiscreteDenoiser
      params:
        num_idx: 1000
        weighting_config:
          target: {_DENOISER}.denoiser_weighting.EpsWeighting
        scaling_config:
          target: {_DENOISER}.denoiser_scaling.EpsScaling
        discretization_config:
          target: {_DENOISER}.discretizer.LegacyDDPMDiscretization
    network_config:
      target: sgm.modules.diffusionmodules.openaimodel.UNetModel
      params:
        adm_in_channels: 88
        num_classes: sequential
        use_checkpoint: false
        in_channels: 4
        out_channels: 4
        model_channels: 32
        attention_resolutions: [4, 2]
        num_res_blocks: 2
        channel_mult: [1, 2, 2]
        num_head_channels: 32
        use_spatial_transformer: true
        use_linear_in_transformer: true
        transformer_depth: [1, 1, 2]
        context_dim: 96
        spatial_transformer_attn_type: softmax-xformers
        legacy: false
    conditioner_config:
      target: sgm.modules.GeneralConditioner
      params:
        emb_models:
          - is_trainable: false
            input_key: txt
            target: sgm.modules.encoders.modules.FrozenCLIPEmbedder
            params:
              version: $clip
              layer: hidden
              layer_idx: 2
          - is_trainable: false
            input_key: txt
            target: sgm.modules.encoders.modules.FrozenOpenCLIPEmbedder2
            params:
              arch: loom-sdxl
              layer: penultimate
              always_return_pooled: true
              legacy: false
{_SIZES}\
    first_stage_config:
      target: sgm.models.autoencoder.AutoencoderKLInferenceWrapper
{_FIRST_STAGE}""")


def make_openclip(folder):
    """Write both models with their configurations and networks beside those of `make_models`; `openclip` is the folder for open_clip."""
    known, clip = folder / "openclip", folder / "clip"
    known.mkdir()
    clip.mkdir()
    for file in CLIP_DIR.iterdir():
        (clip / file.name).symlink_to(file.resolve())
    (clip / "config.json").unlink()
    _text(32, 3).config.save_pretrained(clip)
    # Of both the WebUI leaves out the last block; the file of SD2 has three, whose last it computes, for XL one more is pooled.
    _write_architecture(known / "loom-sd2.json", width=32, layers=4, pooled=32)
    _write_architecture(known / "loom-sdxl.json", width=64, layers=3, pooled=POOLED)
    _write(folder, "sd2", _SD2, {"te1": _text(32, 3)})
    texts = {"te1": _text(32, 3), "te2": _text(64, 3, POOLED)}
    _write(folder, "sdxl", _SDXL.substitute(clip=json.dumps(str(clip))), texts)


def _text(width, layers, pooled=None):
    """Return a random text encoder as OpenCLIP's are: inner layers of four times its width."""
    kind = CLIPTextModelWithProjection if pooled else CLIPTextModel
    config = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        projection_dim=pooled or width,
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(width)
        model = kind(config)
        # Fresh, they answer every text nearly alike, with a mean of 0, by which the WebUI divides.
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
    return model.eval()


def _write_architecture(file, width, layers, pooled):
    text = {"vocab_size": VOCABULARY, "width": width, "heads": width // 32, "layers": layers}
    # The WebUI throws the half for pictures away.
    picture = {"image_size": 32, "layers": 1, "width": 32, "head_width": 32, "patch_size": 16}
    config = {"embed_dim": pooled, "vision_cfg": picture, "text_cfg": text}
    file.write_text(json.dumps(config), encoding="utf-8")


def _write(folder, name, sidecar, texts):
    states = {part: module.state_dict() for part, module in (modules(name) | texts).items()}
    file = folder / "checkpoints" / f"{name}.safetensors"
    tensors = to_original(states, KINDS[name].family)
    write_tensors(file, {key: tensor.contiguous() for key, tensor in tensors.items()}, {})
    file.with_suffix(".yaml").write_text(sidecar, encoding="utf-8")
    networks = folder / "networks"
    _write_network(networks / f"{name}-unet.safetensors", file, UNET, COMPUTED)
    for part in texts:
        network = replace(ENCODERS, component=part)
        _write_network(networks / f"{name}-{part}.safetensors", file, network, (f"{part}.",))


def _write_network(file, base, network, begin):
    checkpoint = open_checkpoint(base)
    draw = torch.Generator().manual_seed(network.seed)
    tensors = {
        layer_id: made(network, torch.zeros(layer.shape), draw)
        for layer_id, layer in checkpoint.layers.items()
        if layer_id.startswith(begin)
        and layer.shape[1:]
        and (network.component == "unet" or layer_id.endswith(FUSED))
    }
    write_network(file, tensors, checkpoint.layers, checkpoint.family.components)
