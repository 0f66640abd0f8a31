"""Reading the networks that a prompt names, for any host: what cannot be used is left out with a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lib_lora.apply.session import LoadedNetwork, Uses
from lib_lora.errors import LoraError, did_you_mean
from lib_lora.families.table import Layer
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.network_file import Unmatched, read_network
from lib_lora.networks.contract import LayerNetwork
from lib_lora.networks.lora import DOWN, truncated
from lib_lora.networks.scaled import scaled
from lib_lora.schedule.blocks import factor_of
from lib_lora.schedule.curve import NetworkUse


def read_uses(
    wanted: Sequence[NetworkUse],
    files: Mapping[str, Path],
    checkpoint: Checkpoint,
    apart: tuple[str, ...] = (),
) -> tuple[Uses, list[str]]:
    """Return the uses with their networks in memory, and a note for whatever is left out.

    files: every file that a prompt can name, by that name; apart: how the names of tensors begin that the host takes care of.
    """
    loaded: dict[tuple[object, ...], LoadedNetwork] = {}
    notes: list[str] = []
    for name in dict.fromkeys(use.name for use in wanted):
        if name not in files:
            notes.append(f"There is no LoRA {name!r}. {_nearest(name, files)}")
            continue
        try:
            file = read_network(files[name], checkpoint.layers, checkpoint.family.components)
        except LoraError as error:
            notes.append(f"The LoRA {name!r} is left out: {error}")
            continue
        for use in wanted:
            if use.name == name and _part(use) not in loaded:
                layers = _of_use(use, file.layers, checkpoint.layers)
                loaded[_part(use)] = LoadedNetwork(name, layers)
        unmatched = [entry for entry in file.unmatched if not entry.tensor.startswith(apart)]
        if unmatched:
            notes.append(_unmatched_note(name, unmatched))
    return [(use, loaded[_part(use)]) for use in wanted if _part(use) in loaded], notes


def _part(use: NetworkUse) -> tuple[object, ...]:
    """Return what tells a part of a network from another of the same one."""
    return use.name, use.ranks, tuple(use.blocks.items()), use.elements


def _of_use(
    use: NetworkUse, networks: Mapping[str, LayerNetwork], layers: Mapping[str, Layer]
) -> dict[str, LayerNetwork]:
    """Return what of a network acts: the first ranks of what has a rank, and every layer as strongly as its block says."""
    found = {}
    for layer_id, network in networks.items():
        layer = layers[layer_id]
        factor = factor_of(use.blocks, use.elements, layer.block, layer.weight.key)
        kind = network.type if factor == 1 else scaled(network.type, factor)
        tensors = network.tensors
        if use.ranks is not None and DOWN in tensors:
            tensors = truncated(tensors, use.ranks)
        if factor != 0:
            found[layer_id] = LayerNetwork(kind, tensors)
    return found


def _unmatched_note(name: str, unmatched: Sequence[Unmatched]) -> str:
    first = unmatched[0]
    return (
        f"{len(unmatched)} tensors of the LoRA {name!r} are left out."
        f" The first is {first.tensor!r}: {first.reason}."
    )


def _nearest(name: str, files: Mapping[str, Path]) -> str:
    return did_you_mean(name, files) if files else "The LoRA folders hold no file."
