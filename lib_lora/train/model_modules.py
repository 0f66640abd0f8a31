"""The modules of a base model: made from a configuration without storage, and filled with the tensors that the family's table places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, UNet2DConditionModel
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)

from lib_lora.errors import FileFormatError
from lib_lora.families.clip_rows import WRAPPER
from lib_lora.families.table import Component, Layer, Placement
from lib_lora.formats.original import layer_view, swapped
from lib_lora.formats.stream import TensorReader
from lib_lora.train.model_shapes import Config

# Where a T5 encoder keeps its token embedding, which files hold under one name or under both.
SHARED_EMBEDDINGS = ("shared", "encoder.embed_tokens")
# What files hold of a text encoder even where the family does not read it.
PROJECTION = "text_projection"


def make_vae(config: Config) -> AutoencoderKL:
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


def filled_module(
    make: Callable[[Config], nn.Module],
    config: Config,
    layers: Iterable[Layer],
    component: Component,
    reader: TensorReader,
    dtype: torch.dtype,
) -> nn.Module:
    """Make a component's module and fill it with a file's tensors, frozen and in evaluation mode.

    layers: those of the component that the file holds. Raises FileFormatError when the file lacks a tensor of the module, has
    another shape, or a layer that the module has no place for.
    """
    placed = {layer.path: layer for layer in layers}
    with torch.device("meta"):
        module = make(config)
    state, used = _read_state(module, placed, component, reader, dtype)
    for path, layer in placed.items():
        if layer.weight.key not in used and path not in (PROJECTION, *SHARED_EMBEDDINGS):
            raise FileFormatError(
                f"{reader.path.name} has {layer.id}, which the installed version of the model libraries knows nothing of."
            )
    module.load_state_dict(state, assign=True)
    _count_positions(module)
    return module.requires_grad_(False).eval()


def _read_state(
    module: nn.Module,
    layers: Mapping[str, Layer],
    component: Component,
    reader: TensorReader,
    dtype: torch.dtype,
) -> tuple[dict[str, Tensor], set[str]]:
    """Return what fills a module that has no storage, and the keys of the file that it was taken from."""
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
    return state, used


def _count_positions(module: nn.Module) -> None:
    """Fill the buffers that no file holds: they count the positions of a text."""
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            parent, _, own = name.rpartition(".")
            positions = torch.arange(buffer.shape[-1])[None]
            module.get_submodule(parent).register_buffer(own, positions, persistent=False)


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
