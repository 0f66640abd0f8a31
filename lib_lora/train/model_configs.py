"""The configurations of a base model's modules: told by its shapes, by a folder, or by the WebUI's sidecar.

Shapes tell every number of a model but how attention is divided among heads; that is the family's, unless a diffusers configuration
folder or the checkpoint's sidecar `.yaml` says otherwise. Those also tell what the model predicts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from lib_lora.errors import FileFormatError
from lib_lora.families.table import Denoiser, Family, ObjectiveName, TextEncoder
from lib_lora.formats.checkpoint import Checkpoint

EMBEDDED = Path(__file__).parents[1] / "demo" / "model"
START_TOKEN, END_TOKEN = 49406, 49407
TIME_NUMBERS = 6
"""How many numbers SDXL is told of a picture's sizes; each becomes a vector."""

Config = dict[str, Any]
Configs = dict[str, Config]
"""Component ("unet", "te1", "vae") -> its diffusers or transformers configuration."""
Shapes = Mapping[str, tuple[int, ...]]
"""A component's layers: path -> shape of the weight."""

# What of a configuration a checkpoint's shapes contradict when it is another model's.
CHECKED = (
    *("block_out_channels", "cross_attention_dim", "num_layers", "joint_attention_dim"),
    *("hidden_size", "num_hidden_layers", "d_model"),
)
SIDECAR_PREDICTIONS: dict[str, ObjectiveName] = {"v": "v", "eps": "epsilon"}
SCHEDULER_PREDICTIONS: dict[str, ObjectiveName] = {"v_prediction": "v", "epsilon": "epsilon"}


@dataclass(frozen=True, slots=True)
class Description:
    """The configurations of a model's modules, what it is told to predict, and whether its noise schedule ends in noise alone."""

    configs: Configs
    objective: ObjectiveName | None = None
    zero_terminal: bool = False


def describe_model(checkpoint: Checkpoint, folder: Path | None = None) -> Description:
    """Return what is known of a model: from the folder asked for, else from what lies beside the file, else from its shapes.

    Beside the file: a folder `model`, or a sidecar of the same name ending in `.yaml`, as the WebUI reads it. The embedded model's
    own folder serves what was merged from it. A folder that is asked for must describe this checkpoint; one that merely lies there
    and does not is left alone.
    """
    derived = configs_from_shapes(checkpoint)
    if folder is not None:
        found = _read_folder(folder, checkpoint.family, derived)
        wrong = _differences(found.configs, derived)
        if wrong:
            raise FileFormatError(
                f"{folder} describes another model than {checkpoint.path.name}: {wrong}."
            )
        return found
    sidecar = checkpoint.path.with_suffix(".yaml")
    known_folders = [checkpoint.path.parent / "model"] + [EMBEDDED] * (not sidecar.is_file())
    for known in known_folders:
        if all(
            (known / name / "config.json").is_file()
            for name in _folders(checkpoint.family, derived).values()
        ):
            found = _read_folder(known, checkpoint.family, derived)
            if not _differences(found.configs, derived):
                return found
    return _with_sidecar(Description(derived), checkpoint.family, sidecar)


def configs_from_shapes(checkpoint: Checkpoint) -> Configs:
    """Return the configurations that a checkpoint's shapes imply, with its family's heads; of the components that it holds."""
    family = checkpoint.family
    if family.denoiser is None:
        raise FileFormatError(
            f"{checkpoint.path.name} is a {family.label} checkpoint, which cannot be trained."
        )
    configs: Configs = {
        family.denoiser.component: DENOISERS[family.denoiser.kind](
            shapes_of(checkpoint, family.denoiser.component), family.denoiser, _pooled(checkpoint)
        ),
        "vae": vae_config(shapes_of(checkpoint, "vae"), family),
    }
    for encoder in family.text_encoders:
        shapes = shapes_of(checkpoint, encoder.component)
        if shapes:
            configs[encoder.component] = ENCODERS[encoder.kind](shapes, encoder)
    if family.denoiser.kind == "mmdit":
        positions = checkpoint.header.shapes[f"{family.components[0].checkpoint}pos_embed"]
        configs[family.denoiser.component]["pos_embed_max_size"] = math.isqrt(positions[1])
    return configs


def _pooled(checkpoint: Checkpoint) -> int:
    """Return the width of the projected text; 0 where none is."""
    layers = (
        checkpoint.layers.get(f"{encoder.component}.text_projection")
        for encoder in checkpoint.family.text_encoders
        if encoder.pooled == "projected"
    )
    return next((layer.shape[0] for layer in layers if layer is not None), 0)


def shapes_of(checkpoint: Checkpoint, component: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a component's layers by path."""
    return {
        each.path: each.shape for each in checkpoint.layers.values() if each.component == component
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


def _folders(family: Family, configs: Configs) -> dict[str, str]:
    """Return the folder of each component in a diffusers model."""
    return {c.name: c.diffusers for c in family.components if c.name in configs}


def _read_folder(folder: Path, family: Family, derived: Configs) -> Description:
    configs = {
        component: _read_json(folder / name / "config.json", f"{name}/config.json")
        for component, name in _folders(family, derived).items()
    }
    scheduler = folder / "scheduler" / "scheduler_config.json"
    told = _read_json(scheduler, "scheduler_config.json") if scheduler.is_file() else {}
    return Description(
        configs,
        SCHEDULER_PREDICTIONS.get(str(told.get("prediction_type"))),
        told.get("rescale_betas_zero_snr") is True,
    )


def _read_json(file: Path, name: str) -> Config:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"A diffusers configuration folder holds {name}; {file} cannot be read: {error}"
        ) from None


def _differences(configs: Configs, derived: Configs) -> str:
    """Name the numbers of a configuration that the checkpoint's shapes contradict; empty when they agree."""
    return ", ".join(
        f"{component} {key} is {configs[component].get(key)} there and {value} in the file"
        for component, told in derived.items()
        for key, value in told.items()
        if key in CHECKED and configs[component].get(key) != value
    )


def _with_sidecar(found: Description, family: Family, sidecar: Path) -> Description:
    """Take what a WebUI sidecar tells, when there is one: heads, and what the model predicts."""
    if not sidecar.is_file() or family.denoiser is None:
        return found
    try:
        params = _section(yaml.safe_load(sidecar.read_text("utf-8"))["model"], "params")
        network = _section(_section(params, "unet_config", "network_config"), "params")
        clip = _section(_section(params, "cond_stage_config"), "params").get("version")
        scaling = str(
            _section(_section(_section(params, "denoiser_config"), "params"), "scaling_config")
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{sidecar} is no model configuration of the WebUI: {error!r}"
        ) from None
    configs = {name: dict(config) for name, config in found.configs.items()}
    denoiser = family.denoiser.component
    if "num_heads" in network:
        configs[denoiser]["attention_head_dim"] = network["num_heads"]
    elif "num_head_channels" in network:
        widths = configs[denoiser].get("block_out_channels", ())
        configs[denoiser]["attention_head_dim"] = [
            max(1, w // network["num_head_channels"]) for w in widths
        ]
    if clip and (Path(clip) / "config.json").is_file():
        told = _read_json(Path(clip) / "config.json", "config.json")
        configs["te1"]["num_attention_heads"] = told["num_attention_heads"]
    objective = (
        "v"
        if "VScaling" in scaling
        else SIDECAR_PREDICTIONS.get(str(params.get("parameterization")))
    )
    return replace(found, configs=configs, objective=objective)


def _section(place: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first section of these names that is there, an empty one when none is; raises TypeError when it is none."""
    found: Any = next((place[name] for name in names if place.get(name) is not None), {})
    if not isinstance(found, Mapping):
        raise TypeError(f"{names[0]} holds no settings")
    return found
