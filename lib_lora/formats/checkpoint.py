"""A base model file: its header, its family and its layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import detect_family
from lib_lora.families.table import Family, Layer
from lib_lora.formats.header import Header, read_header


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A base model as its header tells it; no tensor is held. `layers` is by layer id."""

    path: Path
    header: Header
    family: Family
    layers: dict[str, Layer]


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Read the header of a base model and find its family and layers; raises FileFormatError when it is not supported."""
    path = Path(path)
    header = read_header(path)
    shapes = header.shapes
    try:
        family = detect_family(shapes, header.metadata)
    except FileFormatError as error:
        raise FileFormatError(f"{path.name}: {error}") from None
    return Checkpoint(path, header, family, family.layers(shapes))
