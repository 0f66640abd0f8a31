"""What a file is and what it holds, for a person or a script to read: networks and checkpoints alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import (
    detect_family,
    disagreement,
    guess_network_family,
    network_families,
)
from lib_lora.families.table import Family
from lib_lora.formats import adapter_metadata
from lib_lora.formats.block_norms import block_norms
from lib_lora.formats.dialects import alias_table, layers_of
from lib_lora.formats.hashes import file_hashes
from lib_lora.formats.header import Header
from lib_lora.formats.matching import Matched, Unmatched, layer_tensors, match_tensors, settle
from lib_lora.formats.peft_folder import pieces_of
from lib_lora.formats.stream import TensorReader
from lib_lora.formats.suffixes import SCALE
from lib_lora.networks.contract import ALPHA, LayerNetwork, NetworkType, Tensors, shapes_of

ORIGINAL = "original"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What `inspect` tells, under its JSON keys.

    dialect: "original" for a checkpoint; components: layers by component; ranks, alphas: how many layers have each value. Told to a
    person only: label, the family's or its variant's; block_norms, what each block is added at strength 1.
    """

    family: str | None
    dialect: str
    types: tuple[str, ...] = ()
    layers: int = 0
    components: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, int] = field(default_factory=dict)
    unmatched: tuple[Unmatched, ...] = ()
    problems: tuple[str, ...] = ()
    hashes: dict[str, str]
    metadata: dict[str, str]
    label: str = "unknown"
    block_norms: dict[str, float] = field(default_factory=dict)


def describe(path: Path | str) -> FileReport:
    """Read a network, or a checkpoint's header, and the hashes; raises FileFormatError for what is neither a network nor a checkpoint."""
    path = Path(path)
    with TensorReader(path) as reader:
        shapes = reader.header.shapes
        made_for = guess_network_family(shapes)
        if made_for is not None:
            return _foreign_network(path, reader.header, made_for)
        try:
            family = detect_family(shapes, reader.header.metadata)
        except FileFormatError as error:
            no_checkpoint = f"{path.name}: {error}"
        else:
            return _checkpoint(path, reader.header, family)
        for family in network_families(shapes):
            matched = match_tensors(
                reader.header, alias_table(layers_of(family).values(), family.components)
            )
            if matched.layers:
                return _network(path, reader, family, matched)
        raise FileFormatError(no_checkpoint)


def _network(path: Path, reader: TensorReader, family: Family, matched: Matched) -> FileReport:
    header = reader.header
    kinds = settle(matched, header, None)
    own = _own_parts(reader, matched, kinds)
    ranks = _ranks(header, matched, kinds, own)
    alphas = _alphas(reader, family, matched, ranks, own)
    norms, damage = _block_norms(reader, family, matched, kinds, alphas)
    hashes = file_hashes(path)
    return FileReport(
        family=family.id,
        dialect=matched.dialect,
        types=tuple(sorted({kind.id for kind in kinds.values()})),
        layers=len(kinds),
        components=dict(Counter(id.partition(".")[0] for id in kinds)),
        ranks=_count(ranks.values()),
        alphas=_count(alphas.values()),
        unmatched=tuple(matched.unmatched),
        problems=(*_network_problems(header, family, matched.unmatched, hashes), *damage),
        hashes=hashes,
        metadata=header.metadata,
        label=family.label,
        block_norms=norms,
    )


def _own_parts(
    reader: TensorReader, matched: Matched, kinds: Mapping[str, NetworkType]
) -> dict[str, dict[str, Tensor]]:
    """Return what of the tensors of several layers is one's own, of layers with a rank: it may be a part of the rank too."""
    return {
        id: layer_tensors(
            matched, id, {key: reader.read_to_copy(key) for key in matched.layers[id].values()}
        )
        for id in matched.parts
        if id in kinds and kinds[id].rank is not None
    }


def _ranks(
    header: Header,
    matched: Matched,
    kinds: Mapping[str, NetworkType],
    own: Mapping[str, Tensors],
) -> dict[str, int]:
    ranks = {}
    for id, kind in kinds.items():
        keys = matched.layers[id]
        stored = {suffix: header.tensors[key].shape for suffix, key in keys.items()}
        shapes = shapes_of(own[id]) if id in own else stored
        rank = kind.rank(shapes) if kind.rank is not None else None
        if rank is not None:
            ranks[id] = rank
    return ranks


def _alphas(
    reader: TensorReader,
    family: Family,
    matched: Matched,
    ranks: Mapping[str, int],
    own: Mapping[str, Tensors],
) -> dict[str, float]:
    """Return the alpha of every layer with a rank: its tensor, else what metadata or PEFT's configuration tell, else its rank."""
    config = pieces_of(reader.path, family.components)[0].config
    fields = config or adapter_metadata.read_fields(reader.header.metadata)
    prefixes = {component.name: component.diffusers for component in family.components}
    alphas: dict[str, float] = {}
    for layer_id, rank in ranks.items():
        keys = matched.layers[layer_id]
        component, _, path = layer_id.partition(".")
        if ALPHA in own.get(layer_id, {}):
            alphas[layer_id] = float(own[layer_id][ALPHA])
        elif ALPHA in keys:
            alphas[layer_id] = float(reader.read_to_copy(keys[ALPHA]))
        elif SCALE in keys:
            alphas[layer_id] = float(reader.read_to_copy(keys[SCALE])) * rank
        elif fields is not None:
            alphas[layer_id] = adapter_metadata.alpha_of(fields, prefixes[component], path, rank)
        else:
            alphas[layer_id] = float(rank)
    return alphas


def _block_norms(
    reader: TensorReader,
    family: Family,
    matched: Matched,
    kinds: Mapping[str, NetworkType],
    alphas: Mapping[str, float],
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Read every tensor that is applied; return the norms, or none and the sentence on what is damaged."""
    used = [key for id in kinds for key in matched.layers[id].values()]
    try:
        tensors = reader.read_many(used)
    except FileFormatError as damage:
        return {}, (str(damage),)
    networks = {}
    for id, kind in kinds.items():
        told = {ALPHA: torch.tensor(alphas[id])} if id in alphas else {}
        networks[id] = LayerNetwork(kind, told | layer_tensors(matched, id, tensors))
    return block_norms(family, networks), ()


def _count(values: Iterable[float]) -> dict[str, int]:
    counts = Counter(values)
    return {f"{value:g}": counts[value] for value in sorted(counts)}


def _network_problems(
    header: Header, family: Family, unmatched: list[Unmatched], hashes: Mapping[str, str]
) -> tuple[str, ...]:
    problems = []
    if unmatched:
        problems.append(f"{len(unmatched)} of {len(header.tensors)} tensors are not applied.")
    doubt = disagreement(family, header.metadata)
    if doubt is not None:
        problems.append(doubt)
    stored = header.metadata.get("sshs_model_hash", hashes["sshs_model_hash"])
    if stored != hashes["sshs_model_hash"]:
        problems.append("The sshs_model_hash in its metadata is that of another file.")
    return tuple(problems)


def _foreign_network(path: Path, header: Header, made_for: str) -> FileReport:
    reason = f"made for {made_for}"
    return FileReport(
        family=None,
        dialect="unknown",
        unmatched=tuple(Unmatched(key, reason) for key in header.tensors),
        problems=(f"This network is {reason}, which is not supported yet.",),
        hashes=file_hashes(path),
        metadata=header.metadata,
    )


def _checkpoint(path: Path, header: Header, family: Family) -> FileReport:
    layers = family.layers(header.shapes).values()
    placed = {layer.weight.key for layer in layers}
    placed |= {layer.bias.key for layer in layers if layer.bias is not None}
    doubt = disagreement(family, header.metadata)
    return FileReport(
        family=family.id,
        dialect=ORIGINAL,
        layers=len(layers),
        components=dict(Counter(layer.component for layer in layers)),
        unmatched=tuple(
            Unmatched(key, "no layer of the model; kept as it is")
            for key in header.tensors
            if key not in placed
        ),
        problems=() if doubt is None else (doubt,),
        hashes=file_hashes(path),
        metadata=header.metadata,
        label=family.label,
    )
