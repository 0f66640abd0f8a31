"""Reading the networks that a prompt names, for any host: what cannot be used is left out with a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lib_lora.apply.session import LoadedNetwork, Uses
from lib_lora.errors import LoraError, did_you_mean
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.network_file import Unmatched, read_network
from lib_lora.schedule.curve import NetworkUse


def read_uses(
    wanted: Sequence[NetworkUse], files: Mapping[str, Path], checkpoint: Checkpoint
) -> tuple[Uses, list[str]]:
    """Return the uses with their networks in memory, and a note for whatever is left out.

    files: every file that a prompt can name, by that name.
    """
    loaded: dict[str, LoadedNetwork] = {}
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
        loaded[name] = LoadedNetwork(name, file.layers)
        if file.unmatched:
            notes.append(_unmatched_note(name, file.unmatched))
    return [(use, loaded[use.name]) for use in wanted if use.name in loaded], notes


def _unmatched_note(name: str, unmatched: Sequence[Unmatched]) -> str:
    first = unmatched[0]
    return (
        f"{len(unmatched)} tensors of the LoRA {name!r} are left out."
        f" The first is {first.tensor!r}: {first.reason}."
    )


def _nearest(name: str, files: Mapping[str, Path]) -> str:
    return did_you_mean(name, files) if files else "The LoRA folders hold no file."
