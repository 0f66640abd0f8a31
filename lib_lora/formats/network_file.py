"""Reading and writing network files: every tensor of a file becomes part of a layer or is named with the reason why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lib_lora.errors import UnmatchedError, UsageError, did_you_mean
from lib_lora.families.detect import guess_network_family
from lib_lora.families.table import Component, Layer
from lib_lora.formats import adapter_metadata
from lib_lora.formats.dialects import alias_table
from lib_lora.formats.hashes import tensors_hash
from lib_lora.formats.header import Header
from lib_lora.formats.matching import Matched as Matched
from lib_lora.formats.matching import Unmatched, layer_tensors, match_tensors, settle
from lib_lora.formats.peft_folder import Piece, pieces_of, write_folder
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.formats.suffixes import LORA_BIAS
from lib_lora.formats.written import WRITABLE, Placed, content_of, peft_pieces
from lib_lora.networks.contract import ALPHA, LayerNetwork, at_least_float32
from lib_lora.networks.full import BIAS
from lib_lora.networks.lora import DOWN, scale

# What metadata tell of the tensors as they lay in the file they were read from.
STALE = frozenset(
    {adapter_metadata.KEY, "sshs_model_hash", "sshs_legacy_hash", "modelspec.hash_sha256"}
)


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A network file in memory: `layers` by layer id, and every tensor that is in none of them."""

    name: str
    dialect: str
    layers: dict[str, LayerNetwork]
    metadata: dict[str, str]
    unmatched: tuple[Unmatched, ...]


def read_network(
    path: Path | str, layers: Mapping[str, Layer], components: Sequence[Component]
) -> NetworkFile:
    """Read a network for these layers, whatever its dialect: a file, or a PEFT folder.

    Tensors keep their dtype; suffixes are ours. An alpha that only metadata or a configuration tell is added as a tensor; PEFT's bias
    of `lora_B` becomes the difference of the bias that it makes, in float32 at least. Raises
    FileFormatError for a damaged file and UnmatchedError when not one layer fits or the file is made for another family, some of
    whose layers may fit by chance.
    """
    path = Path(path)
    read = [_read_piece(piece, layers, components) for piece in pieces_of(path, components)]
    found = {layer_id: network for part in read for layer_id, network in part.layers.items()}
    unmatched = tuple(entry for part in read for entry in part.unmatched)
    if not found:
        raise UnmatchedError(_nothing_fits(path, unmatched))
    name = path.name if path.is_dir() else path.stem
    return NetworkFile(name, read[0].dialect, found, read[0].metadata, unmatched)


def _read_piece(
    piece: Piece, layers: Mapping[str, Layer], components: Sequence[Component]
) -> NetworkFile:
    own = [layer for layer in layers.values() if piece.component in (None, layer.component)]
    prefixes = {component.name: component.diffusers for component in components}
    found: dict[str, LayerNetwork] = {}
    with TensorReader(piece.file) as reader:
        header = reader.header
        _refuse_other_family(piece.file, header, components)
        matched = match_tensors(header, alias_table(own, components))
        fields = piece.config or adapter_metadata.read_fields(header.metadata)
        kinds = settle(matched, header, layers)
        stored = reader.read_many(key for id in kinds for key in matched.layers[id].values())
        for layer_id, kind in kinds.items():
            tensors = layer_tensors(matched, layer_id, stored)
            if fields is not None and DOWN in tensors and ALPHA not in tensors:
                layer = layers[layer_id]
                tensors[ALPHA] = _alpha(fields, prefixes[layer.component], layer, tensors)
            if LORA_BIAS in tensors:
                tensors[BIAS] = _scaled(tensors.pop(LORA_BIAS), scale(tensors))
            found[layer_id] = LayerNetwork(kind, tensors)
    unmatched = tuple(matched.unmatched)
    return NetworkFile(piece.file.stem, matched.dialect, found, header.metadata, unmatched)


def _alpha(
    fields: adapter_metadata.Fields, prefix: str, layer: Layer, tensors: Mapping[str, Tensor]
) -> Tensor:
    rank = tensors[DOWN].shape[0]
    return torch.tensor(adapter_metadata.alpha_of(fields, prefix, layer.path, rank))


def _scaled(bias: Tensor, factor: float) -> Tensor:
    return at_least_float32(bias) * factor


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

    tensors: by layer id and our suffix. "kohya" names layers as kohya's trainer does for the family. "diffusers" and "peft" have no
    place for an alpha: alpha / rank goes into `lora_B` where that is exact for every element, else ranks and alphas go into
    `lora_adapter_metadata`. For "peft" a path that does not end in .safetensors is a new folder, whose configuration holds them. The
    hashes of the tensors are added to the metadata. Raises UnmatchedError for a layer that the base lacks and UsageError for a
    dialect that is none or that cannot hold the network.
    """
    path = Path(path)
    if dialect not in WRITABLE:
        raise UsageError(
            f"There is no dialect {dialect!r} to write. {did_you_mean(dialect, WRITABLE)}"
        )
    placed = _placed(tensors, layers, components)
    kept = {key: value for key, value in (metadata or {}).items() if key not in STALE}
    if dialect == "peft" and path.suffix != ".safetensors":
        write_folder(path, peft_pieces(placed), kept)
        return
    content = content_of(dialect, placed, layers.values(), components)
    digest = tensors_hash(content.tensors)
    stamps = {"sshs_model_hash": digest, "modelspec.hash_sha256": f"0x{digest}"}
    write_tensors(path, content.tensors, {**kept, **content.metadata, **stamps})


def check_writable(
    tensors: Mapping[str, Mapping[str, Tensor]],
    layers: Mapping[str, Layer],
    components: Sequence[Component],
    dialect: str,
) -> None:
    """Raise what `write_network` would for a network of these layers, types and ranks; nothing is written."""
    content_of(dialect, _placed(tensors, layers, components), layers.values(), components)


def _placed(
    tensors: Mapping[str, Mapping[str, Tensor]],
    layers: Mapping[str, Layer],
    components: Sequence[Component],
) -> list[Placed]:
    by_name = {component.name: component for component in components}
    for layer_id in tensors:
        if layer_id not in layers:
            raise UnmatchedError(
                f"The base has no layer {layer_id!r}. {did_you_mean(layer_id, layers)}"
            )
    return [
        Placed(layers[layer_id], by_name[layers[layer_id].component], parts)
        for layer_id, parts in tensors.items()
    ]
