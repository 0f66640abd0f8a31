"""What lies beside a network file for AUTOMATIC1111: the picture on its card, and the words that it puts into a prompt.

Its names and keys are those of v1.10.1: `modules/ui_extra_networks.py` looks for a preview of the file's name, with or without
`.preview`, and `extensions-builtin/Lora/ui_edit_user_metadata.py` keeps "activation text" in a `.json`. Both may be a person's own:
what is there stays.
"""

from __future__ import annotations

import json
from pathlib import Path

from lib_lora.formats.place import new_file

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")


def companion_names(file: Path) -> tuple[str, ...]:
    """Return the names of a network file and of what is written beside it."""
    return (file.name, file.with_suffix(".png").name, file.with_suffix(".json").name)


def write_companions(file: Path, sample: Path | None, activation: str) -> list[Path]:
    """Put a preview and the activation text beside a network file unless it has them, and return what was written."""
    written = []
    previews = (file.with_suffix(f"{part}{end}") for part in ("", ".preview") for end in PICTURES)
    if sample is not None and not any(each.exists() for each in previews):
        written.append(_write(file.with_suffix(".png"), sample.read_bytes()))
    words = file.with_suffix(".json")
    if activation and not words.exists():
        text = json.dumps({"activation text": activation}, indent=4, ensure_ascii=False)
        written.append(_write(words, text.encode()))
    return written


def _write(file: Path, data: bytes) -> Path:
    with new_file(file) as out:
        out.write(data)
    return file
