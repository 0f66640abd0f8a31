"""PEFT's folders: `adapter_config.json` tells ranks and alphas, `adapter_model.safetensors` holds the factors.

A folder is of one model. A network on several components is a folder of such folders, named as in a diffusers pipeline.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from lib_lora.errors import FileFormatError, UnmatchedError, UsageError
from lib_lora.families.detect import NETWORK_FAMILIES
from lib_lora.families.table import Component
from lib_lora.formats.adapter_metadata import CONFIG, Fields, parse_fields
from lib_lora.formats.stream import write_tensors

WEIGHTS = "adapter_model.safetensors"
SUPPORTED = "LORA"


class Piece(NamedTuple):
    """One file of a network: its PEFT configuration, and its component, where they are told."""

    file: Path
    config: Fields | None = None
    component: str | None = None


def pieces_of(path: Path, components: Sequence[Component]) -> list[Piece]:
    """Return the files of a network: the file itself, or those of a PEFT folder.

    Raises FileFormatError for any other folder, UnmatchedError for one with a model that the base has not.
    """
    if not path.is_dir():
        beside = path.with_name(CONFIG)
        told = path.name == WEIGHTS and beside.is_file()
        return [Piece(path, _read_config(beside) if told else None)]
    if (path / WEIGHTS).is_file():
        names = {component.diffusers: component.name for component in components}
        return [_piece(path, names.get(path.name))]
    _refuse_strangers(path, components)
    found = [
        _piece(path / component.diffusers, component.name)
        for component in components
        if (path / component.diffusers / WEIGHTS).is_file()
    ]
    if not found:
        raise FileFormatError(
            f"The folder {path.name} has no {WEIGHTS}, neither itself nor in a folder named"
            f" {' or '.join(component.diffusers for component in components)}."
        )
    return found


def _refuse_strangers(path: Path, components: Sequence[Component]) -> None:
    """Refuse a folder of another family, of which a text encoder may fit by chance."""
    known = {one.diffusers for family in NETWORK_FAMILIES for one in family.components}
    own = [component.diffusers for component in components]
    for name in sorted(known.difference(own)):
        if (path / name / WEIGHTS).is_file():
            raise UnmatchedError(
                f"The folder {path.name} changes a model {name}, which this base has not. It has"
                f" {', '.join(own)}."
            )


def _piece(folder: Path, component: str | None) -> Piece:
    return Piece(folder / WEIGHTS, _read_config(folder / CONFIG), component)


def _read_config(file: Path) -> Fields:
    if not file.is_file():
        raise FileFormatError(
            f"The folder {file.parent.name} has no {CONFIG}, which tells the alpha."
        )
    fields = parse_fields(file.read_text(encoding="utf-8", errors="replace"), file.name)
    kind = fields.get("peft_type", SUPPORTED)
    if kind != SUPPORTED:
        raise FileFormatError(
            f"{file.parent.name} is a PEFT adapter of type {kind!r}. Accepted: {SUPPORTED}."
        )
    return fields


def write_folder(
    path: Path,
    pieces: Mapping[str, tuple[Mapping[str, Tensor], Fields]],
    metadata: Mapping[str, str],
) -> None:
    """Write a new PEFT folder, all of it or nothing.

    pieces: component's folder name -> tensors and configuration; one piece alone is the folder itself. Raises UsageError when there
    is something at this path.
    """
    if path.exists():
        raise UsageError(f"{str(path)!r} is there already; a PEFT folder is only written anew.")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        for name, (tensors, config) in pieces.items():
            folder = partial if len(pieces) == 1 else partial / name
            folder.mkdir(parents=True)
            write_tensors(folder / WEIGHTS, tensors, metadata)
            text = json.dumps(_full_config(config), indent=2, sort_keys=True)
            (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _full_config(fields: Fields) -> Fields:
    """Return the fields that PEFT cannot do without, besides the told ones."""
    return {
        "peft_type": SUPPORTED,
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_dropout": 0.0,
        "task_type": None,
        **fields,
    }
