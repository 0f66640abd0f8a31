"""What a merge will do, known before it does it: the base is read by its header alone, the networks are matched with its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib_lora.errors import FileFormatError, UsageError, did_you_mean
from lib_lora.families.detect import disagreement
from lib_lora.families.table import Layer, Placement
from lib_lora.formats.checkpoint import Checkpoint, open_checkpoint
from lib_lora.formats.network_file import NetworkFile, read_network
from lib_lora.formats.stream import TORCH_DTYPES
from lib_lora.merge.live import as_loaded
from lib_lora.networks.contract import LayerNetwork

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ACCEPTED_DTYPES = ("same", *DTYPES)
MODES = ("exact", "live")


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """A network to merge and how strongly; `te_strength` is that of the text encoders, `None` for the same as `strength`."""

    file: Path
    strength: float = 1.0
    te_strength: float | None = None

    @property
    def text_encoders(self) -> float:
        """Return the strength on the text encoders."""
        return self.strength if self.te_strength is None else self.te_strength

    def strength_on(self, component: str) -> float:
        """Return the strength on a component, such as "unet" or "te1"."""
        return self.text_encoders if component.startswith("te") else self.strength


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor of a layer that will differ, and the networks that change it with their strengths, none of them 0."""

    layer: Layer
    uses: tuple[tuple[LayerNetwork, float], ...]
    tensor: Literal["weight", "bias"] = "weight"

    @property
    def place(self) -> Placement:
        """Return where the tensor lies."""
        if self.tensor == "weight":
            return self.layer.weight
        assert (
            self.layer.bias is not None
        )  # a network that is read changes no bias that is not there
        return self.layer.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge that `bake` can carry out.

    networks: the file of each choice; dtype: as asked; dtypes: the dtype of every tensor of the output; changes: by checkpoint
    key, several on one key where the base fuses layers; warnings: sentences; mode: one of `MODES`.
    """

    base: Checkpoint
    choices: tuple[LoraChoice, ...]
    networks: tuple[NetworkFile, ...]
    dtype: str
    dtypes: Mapping[str, torch.dtype]
    changes: Mapping[str, tuple[Change, ...]]
    warnings: tuple[str, ...]
    mode: str = "exact"

    @property
    def output_bytes(self) -> int:
        """Return the size of the output, metadata apart."""
        header = self.base.header
        stored = ((entry, self.dtypes[key]) for key, entry in header.tensors.items())
        elements = ((torch.Size(entry.shape).numel(), dtype) for entry, dtype in stored)
        return header.data_start + sum(count * dtype.itemsize for count, dtype in elements)


def plan_merge(
    base: Path, loras: Sequence[LoraChoice], dtype: str = "same", mode: str = "exact"
) -> MergePlan:
    """Plan the merge of networks into a base model.

    mode: "exact" is the composition law of `networks`, "live" what the WebUI makes of the networks, as `live` tells it.
    dtype: "same" keeps every tensor's; "fp32", "fp16" and "bf16" cast the model's tensors, never the integers and the schedule's
    buffers. Raises UsageError for a dtype or mode that is not accepted, FileFormatError for a file that cannot be read and
    UnmatchedError for a network that has no place in the base.
    """
    if dtype not in ACCEPTED_DTYPES:
        raise UsageError(
            f"There is no dtype {dtype!r} for a merge. {did_you_mean(dtype, ACCEPTED_DTYPES)}"
        )
    if mode not in MODES:
        raise UsageError(f"There is no merge mode {mode!r}. {did_you_mean(mode, MODES)}")
    checkpoint = open_checkpoint(base)
    networks = tuple(_network(lora.file, checkpoint, mode) for lora in loras)
    return MergePlan(
        base=checkpoint,
        choices=tuple(loras),
        networks=networks,
        dtype=dtype,
        dtypes=_output_dtypes(checkpoint, dtype),
        changes=_changes(checkpoint.layers, loras, networks),
        warnings=(*_doubts(checkpoint, networks), *_warnings(loras, networks)),
        mode=mode,
    )


def _network(file: Path, base: Checkpoint, mode: str) -> NetworkFile:
    network = read_network(file, base.layers, base.family.components)
    return as_loaded(file, network, base) if mode == "live" else network


def _output_dtypes(base: Checkpoint, asked: str) -> dict[str, torch.dtype]:
    prefixes = tuple(component.checkpoint for component in base.family.components)
    dtypes = {}
    for key, entry in base.header.tensors.items():
        stored = TORCH_DTYPES.get(entry.dtype)
        if stored is None:
            raise FileFormatError(
                f"{base.path.name} holds {key!r} as {entry.dtype}, which PyTorch cannot compute with."
            )
        cast = stored.is_floating_point and key.startswith(prefixes)
        dtypes[key] = DTYPES.get(asked, stored) if cast else stored
    return dtypes


def _changes(
    layers: Mapping[str, Layer], loras: Sequence[LoraChoice], networks: Sequence[NetworkFile]
) -> dict[str, tuple[Change, ...]]:
    changes: dict[str, tuple[Change, ...]] = {}
    for layer_id, layer in layers.items():
        uses = tuple(
            (network.layers[layer_id], strength)
            for lora, network in zip(loras, networks, strict=True)
            if layer_id in network.layers and (strength := lora.strength_on(layer.component))
        )
        on_bias = tuple(use for use in uses if use[0].type.bias in use[0].tensors)
        found = [Change(layer, uses)] if uses else []
        if on_bias:
            found.append(Change(layer, on_bias, "bias"))
        for change in found:
            key = change.place.key
            changes[key] = (*changes.get(key, ()), change)
    return changes


def _doubts(base: Checkpoint, networks: Sequence[NetworkFile]) -> list[str]:
    files = [(base.path.stem, base.header.metadata)]
    files += [(network.name, network.metadata) for network in networks]
    told = [(name, disagreement(base.family, metadata)) for name, metadata in files]
    return [f"{name}: {doubt}" for name, doubt in told if doubt is not None]


def _warnings(loras: Sequence[LoraChoice], networks: Sequence[NetworkFile]) -> list[str]:
    warnings = []
    for lora, network in zip(loras, networks, strict=True):
        if not lora.strength and not lora.text_encoders:
            warnings.append(f"{lora.file.name} has strength 0 and changes nothing.")
        if network.unmatched:
            first = network.unmatched[0]
            warnings.append(
                f"{len(network.unmatched)} tensors of {lora.file.name} are left out;"
                f" the first is {first.tensor!r}: {first.reason}."
            )
    return warnings
