"""Reading and writing network files: every tensor of a file becomes part of a layer or is named with the reason why not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lib_lora.errors import UnmatchedError, UsageError, did_you_mean
from lib_lora.families.detect import guess_network_family
from lib_lora.families.table import Component, Layer
from lib_lora.formats import adapter_metadata
from lib_lora.formats.dialects import (
    CLIP_WRAPPER,
    Alias,
    alias_table,
    diffusers_name,
    kohya_name,
    sgm_name,
    split_key,
)
from lib_lora.formats.hashes import tensors_hash
from lib_lora.formats.header import Header
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.networks.compose import incomplete, network_type_of
from lib_lora.networks.contract import ALPHA, LayerNetwork, NetworkType, Shape, Shapes, misfit
from lib_lora.networks.lora import DOWN, UP, scale

WRITABLE = ("kohya", "kohya-sgm", "diffusers")
EMBEDDING = "bundle_emb."


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A tensor that is not applied, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A network file in memory: `layers` by layer id, and every tensor that is in none of them."""

    name: str
    dialect: str
    layers: dict[str, LayerNetwork]
    metadata: dict[str, str]
    unmatched: tuple[Unmatched, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """The tensors of a file by layer id and suffix, as keys of the file; the rest with reasons."""

    dialect: str
    layers: dict[str, dict[str, str]]
    unmatched: list[Unmatched]


def read_network(
    path: Path | str, layers: Mapping[str, Layer], components: Sequence[Component]
) -> NetworkFile:
    """Read a network for these layers, whatever its dialect.

    Tensors keep their dtype; suffixes are ours. An alpha that only the metadata tell is added as a tensor. Raises FileFormatError
    for a damaged file and UnmatchedError when not one layer fits or the file is made for another family, some of whose layers may
    fit by chance.
    """
    path = Path(path)
    prefixes = {component.name: component.diffusers for component in components}
    found: dict[str, LayerNetwork] = {}
    with TensorReader(path) as reader:
        header = reader.header
        _refuse_other_family(path, header, components)
        matched = match_tensors(header, alias_table(layers.values(), components))
        fields = adapter_metadata.read_fields(header.metadata)
        for layer_id, kind in settle(matched, header, layers).items():
            tensors = {suffix: reader.read(key) for suffix, key in matched.layers[layer_id].items()}
            if fields is not None and DOWN in tensors and ALPHA not in tensors:
                layer = layers[layer_id]
                tensors[ALPHA] = _alpha(fields, prefixes[layer.component], layer, tensors)
            found[layer_id] = LayerNetwork(kind, tensors)
    if not found:
        raise UnmatchedError(_nothing_fits(path, matched.unmatched))
    return NetworkFile(path.stem, matched.dialect, found, header.metadata, tuple(matched.unmatched))


def match_tensors(header: Header, aliases: Mapping[str, Alias]) -> Matched:
    """Sort the tensors of a file into layers by their names alone; the dialect is that of most of them."""
    layers: dict[str, dict[str, str]] = {}
    unmatched: list[Unmatched] = []
    dialects: Counter[str] = Counter()
    for key in header.tensors:
        name, suffix = split_key(key, aliases)
        alias = aliases.get(name)
        if alias is None:
            unmatched.append(Unmatched(key, _stranger(key)))
            continue
        dialects[alias.dialect] += 1
        keys = layers.setdefault(alias.layer, {})
        if suffix in keys:
            unmatched.append(Unmatched(key, f"{keys[suffix]!r} already names the same tensor"))
        else:
            keys[suffix] = key
    dialect = dialects.most_common(1)[0][0] if dialects else "unknown"
    return Matched(dialect, layers, unmatched)


def _stranger(key: str) -> str:
    if key.startswith(EMBEDDING):
        return "a bundled embedding, not a change of a layer"
    return "the base has no layer of this name"


def settle(
    matched: Matched, header: Header, layers: Mapping[str, Layer] | None
) -> dict[str, NetworkType]:
    """Return the type of every layer whose tensors belong together and fit; the tensors of the others join the unmatched.

    layers: those of the base, `None` when there is no base to fit.
    """
    kinds: dict[str, NetworkType] = {}
    for layer_id, keys in matched.layers.items():
        shapes = {suffix: header.tensors[key].shape for suffix, key in keys.items()}
        kind = network_type_of(shapes)
        reason = _reason(kind, shapes, layers[layer_id].shape if layers is not None else None)
        if kind is not None and reason is None:
            kinds[layer_id] = kind
        else:
            matched.unmatched.extend(Unmatched(key, str(reason)) for key in keys.values())
    return kinds


def _reason(kind: NetworkType | None, shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why tensors of these shapes cannot change a layer of this shape, `None` when they can."""
    if kind is not None:
        return misfit(kind, shapes, layer)
    missing = incomplete(shapes)
    if missing:
        return f"{', '.join(sorted(missing))} of this layer is missing"
    return f"tensors named {', '.join(sorted(shapes))} belong to no supported network type"


def _alpha(
    fields: adapter_metadata.Fields, prefix: str, layer: Layer, tensors: Mapping[str, Tensor]
) -> Tensor:
    rank = tensors[DOWN].shape[0]
    return torch.tensor(adapter_metadata.alpha_of(fields, prefix, layer.path, rank))


def _refuse_other_family(path: Path, header: Header, components: Sequence[Component]) -> None:
    family = guess_network_family(header.shapes, components)
    if family is not None:
        raise UnmatchedError(f"{path.name} is made for {family}, this base is of another family.")


def _nothing_fits(path: Path, unmatched: Sequence[Unmatched]) -> str:
    if not unmatched:
        return f"{path.name} holds no tensor."
    first = unmatched[0]
    return (
        f"None of the {len(unmatched)} tensors of {path.name} fits this base."
        f" The first is {first.tensor!r}: {first.reason}."
    )


def write_network(
    path: Path | str,
    tensors: Mapping[str, Mapping[str, Tensor]],
    layers: Mapping[str, Layer],
    components: Sequence[Component],
    dialect: str = "kohya",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a network; equal arguments give equal bytes, an existing file is replaced at once or not at all.

    tensors: by layer id and our suffix. "diffusers" has no place for an alpha: alpha / rank goes into `lora_B` where that is exact
    for every element, else ranks and alphas go into `lora_adapter_metadata`. The hashes of the tensors are added to the metadata.
    Raises UnmatchedError for a layer that the base lacks and UsageError for a dialect or a type that cannot be written.
    """
    if dialect not in WRITABLE:
        raise UsageError(
            f"There is no dialect {dialect!r} to write. {did_you_mean(dialect, WRITABLE)}"
        )
    by_name = {component.name: component for component in components}
    for layer_id in tensors:
        if layer_id not in layers:
            raise UnmatchedError(
                f"The base has no layer {layer_id!r}. {did_you_mean(layer_id, layers)}"
            )
    placed = [
        (layers[layer_id], by_name[layers[layer_id].component], parts)
        for layer_id, parts in tensors.items()
    ]
    if dialect == "diffusers":
        flat, told = _diffusers_tensors(placed)
    else:
        name = kohya_name if dialect == "kohya" else sgm_name
        flat = {
            f"{name(layer, component)}.{suffix}": tensor
            for layer, component, parts in placed
            for suffix, tensor in parts.items()
        }
        told = {}
    digest = tensors_hash(flat)
    stamps = {"sshs_model_hash": digest, "modelspec.hash_sha256": f"0x{digest}"}
    write_tensors(path, flat, {**(metadata or {}), **told, **stamps})


Placed = tuple[Layer, Component, Mapping[str, Tensor]]


def _diffusers_tensors(placed: Sequence[Placed]) -> tuple[dict[str, Tensor], dict[str, str]]:
    for layer, _, parts in placed:
        if not {DOWN, UP} <= parts.keys() <= {DOWN, UP, ALPHA}:
            raise UsageError(
                f"The diffusers dialect holds LoRA only; {layer.id} has {', '.join(sorted(parts))}."
            )
    ups = [_folded(parts) for _, _, parts in placed]
    exact = all(up is not None for up in ups)
    flat: dict[str, Tensor] = {}
    for (layer, component, parts), up in zip(placed, ups, strict=True):
        name = diffusers_name(layer, component)
        flat[f"{name}.lora_A.weight"] = parts[DOWN]
        flat[f"{name}.lora_B.weight"] = up if exact and up is not None else parts[UP]
    return flat, {} if exact else {adapter_metadata.KEY: _ranks_and_alphas(placed)}


def _folded(parts: Mapping[str, Tensor]) -> Tensor | None:
    """Return `up` times alpha / rank, `None` where that rounds: only a power of two within the dtype's range does not."""
    up, factor = parts[UP], scale(parts)
    folded = up * factor
    exact = math.frexp(factor)[0] == 0.5 and torch.equal(folded / factor, up)
    return folded if exact else None


def _ranks_and_alphas(placed: Iterable[Placed]) -> str:
    return adapter_metadata.write_fields(
        (
            component.diffusers,
            layer.path.removeprefix(CLIP_WRAPPER),
            parts[DOWN].shape[0],
            scale(parts) * parts[DOWN].shape[0],
        )
        for layer, component, parts in placed
    )
