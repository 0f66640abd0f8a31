"""Files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Give a path of the same suffix to write to; it takes the file's name at the end, or is removed when anything stops it."""
    part = file.with_name(f".part-{file.name}")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
