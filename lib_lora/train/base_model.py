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
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from lib_lora.errors import FileFormatError
from lib_lora.families.clip_rows import WRAPPER
from lib_lora.families.detect import (
    ZERO_TERMINAL_MARKER,
    is_ambiguous,
    told_objective,
    with_objective,
)
from lib_lora.families.table import WHOLE, Component, Family, Layer, Placement, TextEncoder
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.header import read_header
from lib_lora.formats.original import layer_view, swapped
from lib_lora.formats.stream import TensorReader
from lib_lora.train.model_configs import EMBEDDED, Config, Description, describe_model, vae_config

TOKENIZER, T5_TOKENIZER = "tokenizer", "tokenizer_3"
# Where a T5 encoder keeps its token embedding, which files hold under one name or under both.
SHARED_EMBEDDINGS = ("shared", "encoder.embed_tokens")
# What files hold of a text encoder even where the family does not read it.
PROJECTION = "text_projection"


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
    header = checkpoint.header
    untold = (
        is_ambiguous(family)
        and prediction == "auto"
        and told.objective is None
        and told_objective(header.shapes, header.metadata) is None
    )
    checkpoint = replace(checkpoint, family=variant_of(checkpoint, told, prediction))
    notes: list[str] = []
    name = family.denoiser.component
    with TensorReader(checkpoint.path) as reader:
        denoiser = _filled(DENOISERS[family.denoiser.kind], name, told, checkpoint, reader, dtype)
        t5_tokenizer = _load_t5_tokenizer(config)
        encoders = {}
        for encoder in _present(family, told, checkpoint, t5_tokenizer is not None, notes):
            kind = ENCODERS[encoder.kind, encoder.pooled == "projected"]
            encoders[encoder.component] = _filled(
                kind, encoder.component, told, checkpoint, reader, dtype
            )
        wide = torch.float32 if family.latent.wide else dtype
        autoencoder = (
            _filled(_make_vae, "vae", told, checkpoint, reader, wide)
            if vae is None
            else load_vae(vae, family, wide)
        )
    return BaseModel(
        checkpoint,
        denoiser,
        encoders,
        autoencoder,
        load_tokenizer(),
        t5_tokenizer,
        told.zero_terminal or ZERO_TERMINAL_MARKER in header.shapes,
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
    placed = {layer.path: layer for layer in layers}
    config = vae_config({path: layer.shape for path, layer in placed.items()}, family)
    with torch.device("meta"):
        module = _make_vae(config)
    with TensorReader(file) as reader:
        return _fill(module, placed, component, reader, dtype)


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
    if family.objective == "flow":
        return family
    if prediction != "auto":
        return with_objective(family, "v" if prediction == "v" else "epsilon")
    return with_objective(family, told.objective) if told.objective else family


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


def _make_vae(config: Config) -> AutoencoderKL:
    return AutoencoderKL.from_config(config)


def _make_unet(config: Config) -> UNet2DConditionModel:
    return UNet2DConditionModel.from_config(config)


def _make_mmdit(config: Config) -> SD3Transformer2DModel:
    return SD3Transformer2DModel.from_config(config)


def _make_clip(config: Config) -> CLIPTextModel:
    return CLIPTextModel(CLIPTextConfig(**_plain(config)))


def _make_projected_clip(config: Config) -> CLIPTextModelWithProjection:
    return CLIPTextModelWithProjection(CLIPTextConfig(**_plain(config)))


def _make_t5(config: Config) -> T5EncoderModel:
    return T5EncoderModel(T5Config(**_plain(config)))


def _plain(config: Config) -> Config:
    """Return a configuration without what only names its class."""
    return {k: v for k, v in config.items() if k not in ("architectures", "model_type")}


DENOISERS: dict[str, Callable[[Config], nn.Module]] = {
    "unet": _make_unet,
    "sized_unet": _make_unet,
    "mmdit": _make_mmdit,
}
ENCODERS: dict[tuple[str, bool], Callable[[Config], nn.Module]] = {
    ("clip", False): _make_clip,
    ("clip", True): _make_projected_clip,
    ("t5", False): _make_t5,
}
"""(kind, whether the pooled text is projected) -> what makes the module."""


def _filled(
    make: Callable[[Config], nn.Module],
    name: str,
    told: Description,
    checkpoint: Checkpoint,
    reader: TensorReader,
    dtype: torch.dtype,
) -> nn.Module:
    """Make a component and fill it with the checkpoint's tensors."""
    layers = {each.path: each for each in checkpoint.layers.values() if each.component == name}
    (component,) = (each for each in checkpoint.family.components if each.name == name)
    with torch.device("meta"):
        module = make(told.configs[name])
    return _fill(module, layers, component, reader, dtype)


def _fill(
    module: nn.Module,
    layers: Mapping[str, Layer],
    component: Component,
    reader: TensorReader,
    dtype: torch.dtype,
) -> nn.Module:
    """Fill a module that has no storage.

    Raises FileFormatError when the file lacks a tensor of it, has another shape, or a layer that it has no module for.
    """
    state: dict[str, Tensor] = {}
    used = set()
    for key, empty in module.state_dict().items():
        if key.endswith("position_ids"):
            state[key] = torch.arange(empty.shape[-1])[None]
            continue
        place = _place(key, layers, component, reader)
        used.add(place.key)
        tensor = swapped(layer_view(reader.read(place.key), place.part), place.part)
        if tensor.shape != empty.shape:
            raise FileFormatError(
                f"{reader.path.name} holds {place.key!r} as {tuple(tensor.shape)}; its configuration needs {tuple(empty.shape)}."
            )
        # A view would keep all of a tensor that several layers share.
        state[key] = tensor.to(dtype).clone() if place.part.of > 1 else tensor.to(dtype)
    for path, layer in layers.items():
        if layer.weight.key not in used and path not in (PROJECTION, *SHARED_EMBEDDINGS):
            raise FileFormatError(
                f"{reader.path.name} has {layer.id}, which the installed version of the model libraries knows nothing of."
            )
    module.load_state_dict(state, assign=True)
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            parent, _, own = name.rpartition(".")
            positions = torch.arange(buffer.shape[-1])[None]
            module.get_submodule(parent).register_buffer(own, positions, persistent=False)
    return module.requires_grad_(False).eval()


def _place(
    key: str, layers: Mapping[str, Layer], component: Component, reader: TensorReader
) -> Placement:
    """Return where a module's tensor lies in the file."""
    path, _, kind = key.rpartition(".")
    names = (path, f"{WRAPPER}{path}", *(SHARED_EMBEDDINGS if path in SHARED_EMBEDDINGS else ()))
    layer = next((layers[name] for name in names if name in layers), None)
    if layer is not None:
        place = layer.bias if kind == "bias" else layer.weight
        if place is not None:
            return place
    original = dict(component.buffers).get(key)
    if original is not None and component.checkpoint + original in reader.header.tensors:
        return Placement(component.checkpoint + original)
    raise FileFormatError(f"{reader.path.name} lacks {key!r} of its {component.name}.")


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
