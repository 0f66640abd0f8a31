"""The base model in memory: the modules of a single-file checkpoint, loaded from local files alone.

The modules are made from the model's configuration, without storage, and filled with the tensors that the family's table places: the
same table that networks are matched and merged by, whichever version of the model libraries there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, UNet2DConditionModel
from torch import nn
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

from lib_lora.errors import FileFormatError
from lib_lora.families.clip_rows import WRAPPER
from lib_lora.families.detect import (
    ZERO_TERMINAL_MARKER,
    is_ambiguous,
    told_objective,
    with_objective,
)
from lib_lora.families.table import WHOLE, Component, Family, Layer, TextEncoder
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.header import read_header
from lib_lora.formats.stream import TensorReader
from lib_lora.train.model_configs import EMBEDDED, Description, describe_model
from lib_lora.train.model_modules import DENOISERS, ENCODERS, filled_module, make_vae
from lib_lora.train.model_shapes import Config, vae_config

TOKENIZER, T5_TOKENIZER = "tokenizer", "tokenizer_3"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The modules of a base model, none of them training.

    checkpoint: with the variant of its family that it turned out to be; text_encoders, by component: those that are there;
    t5_tokenizer: of an encoder that has one of its own; zero_terminal: whether its noise schedule ends in noise alone; untold:
    whether nothing says what it predicts, while models of its structure differ in that; notes: what there is to say of it to the
    person.
    """

    checkpoint: Checkpoint
    denoiser: UNet2DConditionModel | SD3Transformer2DModel
    text_encoders: Mapping[str, Any]
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer
    t5_tokenizer: PreTrainedTokenizerFast | None = None
    zero_terminal: bool = False
    untold: bool = False
    notes: tuple[str, ...] = ()

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules by component name."""
        denoiser = self.checkpoint.family.denoiser
        name = denoiser.component if denoiser else "unet"
        return {name: self.denoiser, **self.text_encoders, "vae": self.vae}


def load_base_model(
    checkpoint: Checkpoint,
    config: Path | None = None,
    dtype: torch.dtype = torch.float32,
    vae: Path | None = None,
    prediction: str = "auto",
) -> BaseModel:
    """Load a checkpoint's modules on the CPU, frozen and in evaluation mode.

    config: a diffusers configuration folder; `None` takes what lies beside the checkpoint, else the family's numbers. vae: a file
    whose autoencoder replaces that of the checkpoint. prediction: "epsilon" or "v" where the person knows better. Raises
    FileFormatError when a file describes another model, lacks a part, or is of a family that cannot be trained.
    """
    family = checkpoint.family
    if family.denoiser is None:
        raise FileFormatError(
            f"{checkpoint.path.name} is a {family.label} checkpoint, which can be neither trained nor drawn with here."
        )
    told = describe_model(checkpoint, config)
    untold = prediction == "auto" and _is_untold(checkpoint, told)
    checkpoint = replace(checkpoint, family=variant_of(checkpoint, told, prediction))
    t5_tokenizer = _load_t5_tokenizer(config)
    wide = torch.float32 if family.latent.wide else dtype
    notes: list[str] = []
    with TensorReader(checkpoint.path) as reader:

        def load(make: Callable[[Config], nn.Module], name: str, dtype: torch.dtype) -> Any:
            layers = [each for each in checkpoint.layers.values() if each.component == name]
            (component,) = (each for each in family.components if each.name == name)
            return filled_module(make, told.configs[name], layers, component, reader, dtype)

        denoiser = load(DENOISERS[family.denoiser.kind], family.denoiser.component, dtype)
        encoders = {
            each.component: load(
                ENCODERS[each.kind, each.pooled == "projected"], each.component, dtype
            )
            for each in _present(family, told, checkpoint, t5_tokenizer is not None, notes)
        }
        autoencoder = load_vae(vae, family, wide) if vae else load(make_vae, "vae", wide)
    return BaseModel(
        checkpoint,
        denoiser,
        encoders,
        autoencoder,
        load_tokenizer(),
        t5_tokenizer,
        told.zero_terminal or ZERO_TERMINAL_MARKER in checkpoint.header.shapes,
        untold,
        tuple(notes),
    )


def load_tokenizer() -> CLIPTokenizer:
    """Load the CLIP tokenizer that every family shares."""
    return CLIPTokenizer.from_pretrained(str(EMBEDDED / TOKENIZER), local_files_only=True)


def load_vae(file: Path, family: Family, dtype: torch.dtype) -> AutoencoderKL:
    """Load an autoencoder from a file of its own, with original keys or diffusers' ones; raises FileFormatError for what is none."""
    (component,) = (each for each in family.components if each.name == "vae")
    shapes = read_header(file).shapes
    # The layouts have a few names in common.
    layers = max((each.expand(shapes) for each in _vae_layouts(component)), key=len)
    if not layers:
        raise FileFormatError(f"{file.name} holds no autoencoder of {family.label}.")
    config = vae_config({layer.path: layer.shape for layer in layers}, family)
    with TensorReader(file) as reader:
        return filled_module(make_vae, config, layers, component, reader, dtype)


def live_modules(
    modules: Mapping[str, nn.Module], layers: Mapping[str, Layer]
) -> dict[str, nn.Module]:
    """Return the live module of each layer whose component is in `modules`.

    transformers 5 names the modules of a text encoder without the `text_model.` that layer paths carry, transformers 4 with it. A
    layer that the model libraries have no module for, such as a projection that nothing reads, is left out.
    """
    found = {}
    named = {component: dict(module.named_modules()) for component, module in modules.items()}
    for id_, layer in layers.items():
        if layer.component in named:
            inner = named[layer.component]
            module = inner.get(layer.path) or inner.get(layer.path.removeprefix(WRAPPER))
            if module is not None:
                found[id_] = module
    return found


def variant_of(checkpoint: Checkpoint, told: Description, prediction: str) -> Family:
    """Return the variant of a family that predicts what the person, the model's description or the checkpoint say."""
    family = checkpoint.family
    if prediction != "auto":
        return with_objective(family, "v" if prediction == "v" else "epsilon")
    return with_objective(family, told.objective) if told.objective else family


def _is_untold(checkpoint: Checkpoint, told: Description) -> bool:
    """Tell whether nothing says what a model predicts, while models of its structure differ in that."""
    header = checkpoint.header
    return (
        is_ambiguous(checkpoint.family)
        and told.objective is None
        and told_objective(header.shapes, header.metadata) is None
    )


def _present(
    family: Family, told: Description, checkpoint: Checkpoint, t5: bool, notes: list[str]
) -> list[TextEncoder]:
    """List the text encoders to load; raises FileFormatError when one lacks that the model cannot go without."""
    there = [encoder for encoder in family.text_encoders if encoder.component in told.configs]
    lacking = [each for each in family.text_encoders if each not in there and not each.optional]
    if lacking:
        names = {component.name: component.diffusers for component in family.components}
        raise FileFormatError(
            f"{checkpoint.path.name} lacks {', '.join(names[each.component] for each in lacking)}: choose the file of this model"
            " that includes its text encoders."
        )
    for encoder in family.text_encoders:
        if encoder.optional and (encoder not in there or not t5):
            reason = (
                "the checkpoint has none"
                if encoder not in there
                else f"model.config names no folder with its {T5_TOKENIZER}"
            )
            notes.append(f"Trained without the T5 text encoder: {reason}.")
    return [encoder for encoder in there if encoder.kind != "t5" or t5]


def _load_t5_tokenizer(folder: Path | None) -> PreTrainedTokenizerFast | None:
    if folder is None or not (folder / T5_TOKENIZER / "tokenizer.json").is_file():
        return None
    return PreTrainedTokenizerFast.from_pretrained(
        str(folder / T5_TOKENIZER), local_files_only=True
    )


def _vae_layouts(component: Component) -> tuple[Component, ...]:
    """Return the ways in which files hold an autoencoder: as a checkpoint does, without the prefix, or by diffusers' names."""
    rows = tuple(
        row._replace(weight=f"{row.path}.weight", bias=f"{row.path}.bias", part=WHOLE)
        for row in component.rows
    )
    return (
        component,
        replace(component, checkpoint=""),
        replace(component, checkpoint="", list_rows=lambda: rows),
    )
