"""A network as each dialect writes it: the tensors by the dialect's keys, and what the dialect tells beside them.

Whatever a dialect has no place for is refused in a sentence that names the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.families.table import Component, Layer, Part
from lib_lora.formats import adapter_metadata
from lib_lora.formats.dialects import (
    CLIP_WRAPPER,
    DENOISER,
    TEXT_ENCODER,
    comfy_name,
    diffusers_name,
    kohya_name,
    kohya_oft_name,
    kohya_original_name,
    onetrainer_name,
    original_path,
    peft_name,
    trained_under_original_names,
)
from lib_lora.formats.fused import cut, cut_misfit, joined
from lib_lora.formats.suffixes import DORA, MAGNITUDE
from lib_lora.networks.contract import ALPHA, Tensors, at_least_float32, shapes_of
from lib_lora.networks.lora import DOWN, UP, scale
from lib_lora.networks.oft import CONSTRAINT

KOHYAS = ("kohya", "kohya-sgm")
WRITABLE = (*KOHYAS, "diffusers", "peft", "comfy", "onetrainer")

Namer = Callable[[Layer, Component], str]


class Placed(NamedTuple):
    """The network of one layer."""

    layer: Layer
    component: Component
    tensors: Tensors


class Content(NamedTuple):
    """The tensors of a file, and the metadata that belong to them."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def content_of(
    dialect: str, placed: Sequence[Placed], layers: Iterable[Layer], components: Sequence[Component]
) -> Content:
    """Return what a file of this dialect holds; raises UsageError, which names the layer, for what it cannot hold.

    layers: all of the base, so that a tensor that is several of them is written whole.
    """
    if dialect in ("diffusers", "peft"):
        if dialect == "peft":
            _check_one_component(placed)
        return _peft_content(placed, diffusers_name if dialect == "diffusers" else peft_name)
    if dialect not in KOHYAS:
        placed = [_with_lycoris_bound(item) for item in placed]
    if dialect == "onetrainer":
        return Content(_named(placed, onetrainer_name), {})
    if dialect == "comfy":
        _check_comfy(placed)
    original = dialect in ("comfy", "kohya-sgm") or trained_under_original_names(components)
    name = comfy_name if dialect == "comfy" else kohya_name
    apart = [item for item in placed if not original or item.component.kohya != DENOISER]
    whole = [item for item in placed if original and item.component.kohya == DENOISER]
    original_name = comfy_name if dialect == "comfy" else kohya_original_name
    tensors = _named(apart, name) | _whole_tensors(
        whole, layers, original_name, alpha_of_one=dialect != "comfy"
    )
    return Content(tensors, {})


def _with_lycoris_bound(item: Placed) -> Placed:
    """Return a network with kohya's bound of an OFT as LyCORIS', its alpha, where 0 stands for no bound and cannot be one."""
    if CONSTRAINT not in item.tensors:
        return item
    if not item.tensors[CONSTRAINT].any():
        raise UsageError(
            f"The OFT on {item.layer.id} is bound to 0, which in this dialect stands for no bound."
            " The kohya dialect holds it."
        )
    return item._replace(tensors=_bound_as_alpha(item.tensors))


def _bound_as_alpha(tensors: Tensors) -> dict[str, Tensor]:
    rest = {s: tensor for s, tensor in tensors.items() if s not in (ALPHA, CONSTRAINT)}
    return {**rest, ALPHA: tensors[CONSTRAINT]}


def _check_comfy(placed: Iterable[Placed]) -> None:
    for layer, component, _ in placed:
        if not component.kohya.startswith((DENOISER, TEXT_ENCODER)):
            raise UsageError(
                f"ComfyUI has no name for {layer.id}; it knows denoiser and text encoders."
            )


def _named(placed: Iterable[Placed], name: Namer) -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for layer, component, tensors in placed:
        flat |= _keyed(name(layer, component), tensors)
    return flat


def _keyed(name: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors by their keys; an OFT bound as kohya's is named as kohya's."""
    if CONSTRAINT in tensors:
        name, tensors = kohya_oft_name(name), _bound_as_alpha(tensors)
    return {f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}


def _whole_tensors(
    placed: Sequence[Placed], layers: Iterable[Layer], name: Namer, *, alpha_of_one: bool
) -> dict[str, Tensor]:
    """Return networks on the tensors of the original checkpoint, in its order of rows."""
    given = {item.layer.id: item.tensors for item in placed}
    together: dict[str, list[Layer]] = {}
    for layer in layers:
        together.setdefault(layer.weight.key, []).append(layer)
    flat: dict[str, Tensor] = {}
    done: set[str] = set()
    for layer, component, tensors in placed:
        part = layer.weight.part
        if layer.weight.key in done:
            continue
        done.add(layer.weight.key)
        if part.of > 1:
            siblings = sorted(together[layer.weight.key], key=lambda one: one.weight.part.index)
            parts = [given.get(one.id) for one in siblings]
            tensors = joined(original_path(layer, component), parts, alpha_of_one=alpha_of_one)
        elif part.swap_halves:
            tensors = _swapped(layer, tensors)
        flat |= _keyed(name(layer, component), tensors)
    return flat


def _swapped(layer: Layer, tensors: Tensors) -> dict[str, Tensor]:
    part = Part(swap_halves=True)
    reason = cut_misfit(shapes_of(tensors), part)
    if reason is not None:
        raise UsageError(f"This dialect has the halves of {layer.id} exchanged: {reason}.")
    return {suffix: cut(suffix, tensor, part) for suffix, tensor in tensors.items()}


def peft_pieces(
    placed: Sequence[Placed],
) -> dict[str, tuple[dict[str, Tensor], adapter_metadata.Fields]]:
    """Return the PEFT folders of a network: component's folder name -> tensors and configuration."""
    _check_plain(placed)
    pieces: dict[str, tuple[dict[str, Tensor], adapter_metadata.Fields]] = {}
    for folder in dict.fromkeys(item.component.diffusers for item in placed):
        own = [item for item in placed if item.component.diffusers == folder]
        tensors: dict[str, Tensor] = {}
        for layer, component, parts in own:
            tensors |= _peft_tensors(peft_name(layer, component), parts, parts[UP])
        config = adapter_metadata.config_of(values[1:] for values in _ranks_and_alphas(own))
        pieces[folder] = (tensors, {**config, "use_dora": DORA in own[0].tensors})
    return pieces


def _check_one_component(placed: Sequence[Placed]) -> None:
    folders = sorted({item.component.diffusers for item in placed})
    if len(folders) > 1:
        raise UsageError(
            f"A file of PEFT holds one model, this network changes {' and '.join(folders)}; name a folder instead of a file."
        )


def _check_plain(placed: Sequence[Placed]) -> None:
    """Refuse what PEFT's tensors cannot hold: other types than LoRA, and DoRA on inputs or on some layers alone."""
    for layer, _, parts in placed:
        if not {DOWN, UP} <= parts.keys() <= {DOWN, UP, ALPHA, DORA}:
            raise UsageError(
                f"diffusers and PEFT hold LoRA only; {layer.id} has {', '.join(sorted(parts))}."
                " The kohya and onetrainer dialects hold every type."
            )
        if (DORA in parts) != (DORA in placed[0].tensors):
            raise UsageError(
                f"PEFT has DoRA on all layers or on none; {layer.id} and {placed[0].layer.id} differ in this."
            )
        if DORA in parts and len(parts[DORA]) != len(parts[UP]):
            raise UsageError(
                f"PEFT has DoRA's magnitudes per output; those of {layer.id} have the shape"
                f" {tuple(parts[DORA].shape)}."
            )


def _peft_content(placed: Sequence[Placed], name: Namer) -> Content:
    """Return tensors named as PEFT does: alpha / rank goes into `lora_B` where that is exact, else into the metadata."""
    _check_plain(placed)
    ups = [_folded(parts) for _, _, parts in placed]
    exact = all(up is not None for up in ups)
    flat: dict[str, Tensor] = {}
    for (layer, component, parts), up in zip(placed, ups, strict=True):
        told = up if exact and up is not None else parts[UP]
        flat |= _peft_tensors(name(layer, component), parts, told)
    if exact:
        return Content(flat, {})
    dora = {f"{item.component.diffusers}.use_dora": True for item in placed if DORA in item.tensors}
    text = adapter_metadata.write_fields(_ranks_and_alphas(placed), dora)
    return Content(flat, {adapter_metadata.KEY: text})


def _peft_tensors(name: str, parts: Tensors, up: Tensor) -> dict[str, Tensor]:
    tensors = {f"{name}.lora_A.weight": parts[DOWN], f"{name}.lora_B.weight": up}
    if DORA in parts:
        ones = up.shape[2:]
        shape = (1, len(up), *ones) if ones else (len(up),)
        tensors[f"{name}.{MAGNITUDE}"] = parts[DORA].reshape(shape)
    return tensors


def _folded(parts: Mapping[str, Tensor]) -> Tensor | None:
    """Return `up` times alpha / rank, `None` where that rounds: only a power of two within the dtype's range does not."""
    up, factor = parts[UP], scale(parts)
    wide = at_least_float32(up)
    folded = (wide * factor).to(up.dtype)
    exact = math.frexp(factor)[0] == 0.5 and torch.equal(folded.to(wide.dtype) / factor, wide)
    return folded if exact else None


def _ranks_and_alphas(placed: Iterable[Placed]) -> list[tuple[str, str, int, float]]:
    """Return (component's prefix, path, rank, alpha) of each layer; transformers 5 has no `text_model.` in its names."""
    return [
        (
            component.diffusers,
            layer.path.removeprefix(CLIP_WRAPPER),
            len(parts[DOWN]),
            scale(parts) * len(parts[DOWN]),
        )
        for layer, component, parts in placed
    ]
