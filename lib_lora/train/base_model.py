"""The base model in memory: the modules of a single-file checkpoint, loaded from local files alone.

Shapes tell every number of an SD1 model but two: how many attention heads its UNet and its text encoder have. Those come from a
diffusers configuration folder, from the checkpoint's sidecar `.yaml`, or are Stable Diffusion 1.5's.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from lib_lora.errors import FileFormatError
from lib_lora.families.clip_rows import WRAPPER
from lib_lora.families.sd1 import SD1, SD1_UNWRAPPED
from lib_lora.families.table import Layer
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.stream import TensorReader

EMBEDDED = Path(__file__).parents[1] / "demo" / "model"
TOKENIZER = EMBEDDED / "tokenizer"
LEVELS = range(4)
UNET_HEADS, CLIP_HEAD_WIDTH = 8, 64

Configs = dict[str, dict[str, object]]
"""Component folder ("unet", "vae", "text_encoder") -> its diffusers or transformers configuration."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The modules of a base model, none of them training."""

    checkpoint: Checkpoint
    unet: UNet2DConditionModel
    text_encoder: CLIPTextModel
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules by component name."""
        return {"unet": self.unet, "te1": self.text_encoder, "vae": self.vae}


def load_base_model(
    checkpoint: Checkpoint, config: Path | None = None, dtype: torch.dtype = torch.float32
) -> BaseModel:
    """Load a checkpoint's modules on the CPU, frozen and in evaluation mode.

    config: a diffusers configuration folder; `None` takes what lies beside the checkpoint, else the family's numbers. Raises
    FileFormatError when the folder describes another model, or the checkpoint is of a family that cannot be loaded yet.
    """
    if checkpoint.family not in (SD1, SD1_UNWRAPPED):
        raise FileFormatError(
            f"{checkpoint.path.name} is a {checkpoint.family.label} checkpoint that predicts {checkpoint.family.objective}:"
            f" training and generation support {SD1.label} that predicts {SD1.objective} alone."
        )
    configs = find_configs(checkpoint, config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("unet", "vae"):
            (folder / part).mkdir()
            (folder / part / "config.json").write_text(json.dumps(configs[part]), "utf-8")
        unet, vae = (
            kind.from_single_file(
                str(checkpoint.path),
                config=name,
                subfolder=part,
                local_files_only=True,
            )
            for kind, part in ((UNet2DConditionModel, "unet"), (AutoencoderKL, "vae"))
        )
    text_encoder = _load_text_encoder(checkpoint, configs["text_encoder"])
    for module in (unet, vae, text_encoder):
        # diffusers' own `to` warns of modules to be kept in float32 even where a model has none.
        nn.Module.to(module, dtype)
        module.requires_grad_(False).eval()
    return BaseModel(checkpoint, unet, text_encoder, vae, load_tokenizer())


def load_tokenizer() -> CLIPTokenizer:
    """Load the CLIP tokenizer that every SD1 model shares."""
    return CLIPTokenizer.from_pretrained(str(TOKENIZER), local_files_only=True)


def live_modules(
    modules: Mapping[str, nn.Module], layers: Mapping[str, Layer]
) -> dict[str, nn.Module]:
    """Return the live module of each layer whose component is in `modules`.

    transformers 5 names the modules of a text encoder without the `text_model.` that layer paths carry, transformers 4 with it.
    """
    found = {}
    named = {component: dict(module.named_modules()) for component, module in modules.items()}
    for id_, layer in layers.items():
        if layer.component in named:
            inner = named[layer.component]
            found[id_] = inner.get(layer.path) or inner[layer.path.removeprefix(WRAPPER)]
    return found


def find_configs(checkpoint: Checkpoint, folder: Path | None = None) -> Configs:
    """Return the configuration of every module: the folder asked for, else what lies beside the file, else SD1.5's numbers.

    Beside the file: a folder `model`, or a sidecar of the same name ending in `.yaml`, as the WebUI reads it. The embedded model's
    own folder serves what was merged from it. A folder that is asked for must describe this checkpoint; one that merely lies there
    and does not is left alone.
    """
    derived = configs_from_shapes(checkpoint)
    if folder is not None:
        configs = _read_folder(folder)
        wrong = _differences(configs, derived)
        if wrong:
            raise FileFormatError(
                f"{folder} describes another model than {checkpoint.path.name}: {wrong}."
            )
        return configs
    sidecar = checkpoint.path.with_suffix(".yaml")
    known_folders = [checkpoint.path.parent / "model"] + [EMBEDDED] * (not sidecar.is_file())
    for known in known_folders:
        if (known / "unet" / "config.json").is_file():
            configs = _read_folder(known)
            if not _differences(configs, derived):
                return configs
    return _with_sidecar(derived, sidecar)


def configs_from_shapes(checkpoint: Checkpoint) -> Configs:
    """Return the configurations that an SD1 checkpoint's shapes imply, with SD1.5's numbers of heads."""
    shape = {id_: layer.shape for id_, layer in checkpoint.layers.items()}
    tokens, width = shape["te1.text_model.embeddings.token_embedding"]
    depth = sum(id_.startswith("te1.") and id_.endswith(".mlp.fc1") for id_ in shape)
    cross = shape["unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"][1]
    attention, plain = ["CrossAttnDownBlock2D"] * 3, ["CrossAttnUpBlock2D"] * 3
    return {
        "unet": {
            "block_out_channels": [
                shape[f"unet.down_blocks.{n}.resnets.0.conv1"][0] for n in LEVELS
            ],
            "cross_attention_dim": cross,
            "attention_head_dim": UNET_HEADS,
            "layers_per_block": 2,
            "down_block_types": [*attention, "DownBlock2D"],
            "up_block_types": ["UpBlock2D", *plain],
            "in_channels": checkpoint.family.latent.channels,
            "out_channels": checkpoint.family.latent.channels,
            "sample_size": 64,
        },
        "vae": {
            "block_out_channels": [
                shape[f"vae.encoder.down_blocks.{n}.resnets.0.conv1"][0] for n in LEVELS
            ],
            "down_block_types": ["DownEncoderBlock2D"] * len(LEVELS),
            "up_block_types": ["UpDecoderBlock2D"] * len(LEVELS),
            "layers_per_block": 2,
            "latent_channels": checkpoint.family.latent.channels,
            "scaling_factor": checkpoint.family.latent.scale,
            "sample_size": 512,
        },
        "text_encoder": {
            "vocab_size": tokens,
            "hidden_size": width,
            "intermediate_size": shape["te1.text_model.encoder.layers.0.mlp.fc1"][0],
            "num_hidden_layers": depth,
            "num_attention_heads": max(1, width // CLIP_HEAD_WIDTH),
            "max_position_embeddings": shape["te1.text_model.embeddings.position_embedding"][0],
            "hidden_act": "quick_gelu",
            "bos_token_id": 49406,
            "eos_token_id": 49407,
            "pad_token_id": 49407,
        },
    }


def _read_folder(folder: Path) -> Configs:
    configs = {}
    for part in ("unet", "vae", "text_encoder"):
        file = folder / part / "config.json"
        try:
            configs[part] = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FileFormatError(
                f"A diffusers configuration folder holds {part}/config.json; {file} cannot be read: {error}"
            ) from None
    return configs


def _differences(configs: Configs, derived: Configs) -> str:
    """Name the numbers of a configuration that the checkpoint's shapes contradict; empty when they agree."""
    checked = (
        ("unet", "block_out_channels"),
        ("unet", "cross_attention_dim"),
        ("vae", "block_out_channels"),
        ("text_encoder", "hidden_size"),
        ("text_encoder", "num_hidden_layers"),
    )
    return ", ".join(
        f"{part} {key} is {configs[part].get(key)} there and {derived[part][key]} in the file"
        for part, key in checked
        if configs[part].get(key) != derived[part][key]
    )


def _with_sidecar(derived: Configs, sidecar: Path) -> Configs:
    """Take the numbers of heads from a WebUI sidecar when there is one."""
    if not sidecar.is_file():
        return derived
    try:
        params = yaml.safe_load(sidecar.read_text("utf-8"))["model"]["params"]
        heads = params["unet_config"]["params"]["num_heads"]
        clip = params["cond_stage_config"].get("params", {}).get("version")
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{sidecar} is no model configuration of the WebUI: {error!r}"
        ) from None
    text_encoder = dict(derived["text_encoder"])
    if clip and (Path(clip) / "config.json").is_file():
        found = json.loads((Path(clip) / "config.json").read_text("utf-8"))
        text_encoder["num_attention_heads"] = found["num_attention_heads"]
    unet = {**derived["unet"], "attention_head_dim": heads}
    return {**derived, "unet": unet, "text_encoder": text_encoder}


def _load_text_encoder(checkpoint: Checkpoint, config: dict[str, object]) -> CLIPTextModel:
    accepted = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    encoder = CLIPTextModel(CLIPTextConfig(**accepted))
    with TensorReader(checkpoint.path) as reader:
        for key, tensor in encoder.state_dict().items():
            path, _, kind = key.removeprefix(WRAPPER).rpartition(".")
            layer = checkpoint.layers.get(f"te1.{WRAPPER}{path}")
            if layer is None:
                continue
            place = layer.bias if kind == "bias" else layer.weight
            if place is not None:
                tensor.copy_(reader.read(place.key))
    return encoder
