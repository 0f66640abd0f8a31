"""The header of a safetensors file, read strictly: everything that can be wrong in it is refused before any tensor is read.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, little-endian; a JSON object
that maps each tensor to dtype, shape and data offsets, with texts under `__metadata__`; then the data, without gaps.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard

from lib_lora.errors import FileFormatError
from lib_lora.formats.scanner import Description, Scanner

MAX_HEADER_BYTES = 25_000_000
PIECE_BYTES = 1 << 20
MAX_TENSORS = 20_000  # the largest states of a training have about 10,000
MAX_METADATA = 2_000  # kohya's trainer writes about 100
MAX_ESCAPES = 1_000_000  # characters that are written with a backslash
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**48
MAX_SHOWN = 400  # characters of a message that may quote the file

# In the order in which the safetensors library lays tensors out: wide items last here, first in the file.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
FIELDS = frozenset({"dtype", "shape", "data_offsets"})
METADATA = "__metadata__"
DAMAGED = "The file is damaged or not what its name says; get it again from where it came from."
PICKLE_SUFFIXES = frozenset({".ckpt", ".pt", ".pth", ".bin", ".pkl"})
PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class TensorEntry(NamedTuple):
    """Where a tensor lies: the safetensors dtype, its shape, and the file offsets of its first byte and past its last."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself; `data_start` is the file offset of the first tensor byte."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_start: int
    file_bytes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by its key."""
        return {key: entry.shape for key, entry in self.tensors.items()}


def read_header(path: Path | str) -> Header:
    """Read and check the header of a safetensors file; no tensor is read.

    Raises FileFormatError that names the file, the tensor and the remedy, when the file is missing, is no safetensors file, or
    claims anything that it does not hold.
    """
    path = Path(path)
    text, data_start, file_bytes = _header_text(path)
    entries, metadata = _parse(path, text, data_start, file_bytes)
    _check_coverage(path, entries, data_start, file_bytes)
    return Header(entries, metadata, data_start, file_bytes)


def _header_text(path: Path) -> tuple[str, int, int]:
    if not path.is_file():
        raise FileFormatError(f"There is no file {str(path)!r}.")
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(9)
        _refuse_pickle(path, first)
        file.seek(8)
        length = int.from_bytes(first[:8], "little")
        if len(first) < 8 or length > file_bytes - 8:
            raise _bad(path, f"announces a header of {length:,} bytes but has {file_bytes:,} bytes")
        if length > MAX_HEADER_BYTES:
            raise _bad(
                path,
                f"announces a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are accepted",
            )
        return _decoded(path, file, length), 8 + length, file_bytes


def _decoded(path: Path, file: BinaryIO, length: int) -> str:
    """Read a text piece by piece: its bytes and its characters are never there at once."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = []
    for start in range(0, length, PIECE_BYTES):
        piece = file.read(min(PIECE_BYTES, length - start))
        try:
            pieces.append(decoder.decode(piece, final=start + PIECE_BYTES >= length))
        except UnicodeDecodeError as error:
            place = 8 + start + len(piece) - len(error.object) + error.start
            raise _bad(path, f"has a header that is not UTF-8 (byte {place:,})") from None
    return "".join(pieces)


def _refuse_pickle(path: Path, first: bytes) -> None:
    # A header's length may begin as a pickle does, but then a brace comes after it.
    if (
        first.startswith(PICKLE_STARTS) and first[8:] != b"{"
    ) or path.suffix.lower() in PICKLE_SUFFIXES:
        raise FileFormatError(
            f"{path.name} is a pickle (.ckpt, .pt, .bin), which can run code when it is opened. Only safetensors files are"
            " accepted: get that version of it, or convert a checkpoint that you trust in the WebUI's Checkpoint Merger"
            " (No interpolation, safetensors)."
        )


def _parse(
    path: Path, text: str, data_start: int, file_bytes: int
) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    scanner, name = Scanner(text), ""
    entries: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    if text[:1] != "{":
        raise _bad(path, "has a header that is not a JSON object")
    try:
        if text.count('"data_offsets"') > MAX_TENSORS or text.count("\\") > MAX_ESCAPES:
            raise ValueError(f"more than {MAX_TENSORS:,} tensors or {MAX_ESCAPES:,} escapes")
        for name in scanner.members(MAX_TENSORS + 1):
            if name == METADATA:
                metadata = _metadata(path, scanner)
            else:
                told = scanner.usual_description() or _description(path, name, scanner)
                entries[name] = _entry(path, name, told, data_start, file_bytes)
        if not scanner.next_is(""):
            raise ValueError(f"more than one object, from character {scanner.at:,}")
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"has a header that cannot be read, after {name!r}: {error}") from None
    return entries, metadata


def _metadata(path: Path, scanner: Scanner) -> dict[str, str]:
    metadata = {}
    if not scanner.next_is("{"):
        raise _bad(path, "has metadata that is not a JSON object")
    for name in scanner.members(MAX_METADATA):
        if not scanner.next_is('"'):
            raise _bad(path, f"has metadata {name!r} that is not a text")
        metadata[name] = scanner.string()
    return metadata


def _description(path: Path, key: str, scanner: Scanner) -> Description:
    """Read what a header says of a tensor, however it is spelled."""
    raw = scanner.description()
    if not isinstance(raw, dict) or raw.keys() != FIELDS:
        raise _bad(
            path, f"describes tensor {key!r} by something other than dtype, shape and offsets"
        )
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str):
        raise _bad(path, f"gives tensor {key!r} the dtype {_short(dtype)}, which is no text")
    if not _is_list_of_sizes(shape):
        raise _bad(path, f"gives tensor {key!r} the shape {_short(shape)}, which is none")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2:
        raise _bad(path, f"gives tensor {key!r} the offsets {_short(offsets)}, which are no range")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _is_list_of_sizes(value: object) -> TypeGuard[list[int]]:
    # JSON's `true` is an int too, but of another type.
    return type(value) is list and all(type(size) is int and size >= 0 for size in value)


def _entry(
    path: Path, key: str, told: Description, data_start: int, file_bytes: int
) -> TensorEntry:
    dtype, shape, first, last = told
    item = ITEM_BYTES.get(dtype)
    if item is None:
        raise _bad(
            path,
            f"gives tensor {key!r} the dtype {_short(dtype)}; accepted: {', '.join(ITEM_BYTES)}",
        )
    if len(shape) > MAX_DIMENSIONS:
        raise _bad(path, f"gives tensor {key!r} the shape {_short(shape)}, which is none")
    elements = math.prod(shape)
    if (elements or math.prod(size for size in shape if size)) > MAX_ELEMENTS:
        raise _bad(path, f"gives tensor {key!r} the impossible shape {_short(shape)}")
    if first > last:
        raise _bad(path, f"gives tensor {key!r} the offsets {[first, last]}, which are no range")
    start, stop = data_start + first, data_start + last
    if stop > file_bytes:
        raise _bad(
            path,
            f"ends at byte {file_bytes:,}, but tensor {key!r} reaches to byte {stop:,}: the file is cut short",
        )
    if stop - start != elements * item:
        raise _bad(
            path,
            f"gives tensor {key!r} {stop - start:,} bytes; {dtype} of shape {shape} has {elements * item:,}",
        )
    return TensorEntry(dtype, shape, start, stop)


def _check_coverage(
    path: Path, entries: Mapping[str, TensorEntry], data_start: int, file_bytes: int
) -> None:
    reached, before = data_start, ""
    for start, stop, key in sorted(
        (entry.start, entry.stop, key) for key, entry in entries.items()
    ):
        if start < reached:
            raise _bad(path, f"lets tensors {before!r} and {key!r} overlap")
        if start > reached:
            raise _bad(path, f"has a gap of {start - reached:,} bytes before tensor {key!r}")
        reached, before = stop, key
    if reached != file_bytes:
        raise _bad(path, f"has {file_bytes - reached:,} bytes after its last tensor")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bad(path: Path, problem: str) -> FileFormatError:
    shown = problem if len(problem) <= MAX_SHOWN else f"{problem[:MAX_SHOWN]}..."
    return FileFormatError(f"{path.name} {shown}. {DAMAGED}")
