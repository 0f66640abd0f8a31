"""Reading and writing safetensors files one tensor at a time.

What we write is a function of the tensors and the metadata alone: no clock, host, path or process is in the bytes. Tensors lie in
the order of the safetensors library (wide items first, then by key), so that hashes of the data agree with its files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from lib_lora.errors import FileFormatError
from lib_lora.formats.header import ITEM_BYTES, Header, TensorEntry, read_header
from lib_lora.formats.place import new_file

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_LAYOUT = {name: place for place, name in enumerate(reversed(ITEM_BYTES))}


# The bits of a number without its sign, read as an integer, reach the second value when it is infinite or not a number: its exponent
# is all ones (IEEE 754; Micikevicius et al., 2022, "FP8 Formats for Deep Learning", for 8 bits: E4M3 has one NaN and no infinity).
_NOT_FINITE = {
    torch.float8_e4m3fn: (torch.int8, 0x7F),
    torch.float8_e5m2: (torch.int8, 0x7C),
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
# What is read at once is still in the processor's cache when it is looked through.
RUN_BYTES = 1 << 21


class TensorReader:
    """An open safetensors file; a context manager."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.header: Header = read_header(self.path)

    def read(self, key: str) -> Tensor:
        """Read one tensor to compute with, in the file's own dtype and on the CPU.

        Raises KeyError for a key that the header lacks, FileFormatError for a tensor with a NaN or an infinity.
        """
        return self.read_many((key,))[key]

    def read_many(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Read tensors as `read` does, neighbours at once: those may share their memory."""
        tensors: dict[str, Tensor] = {}
        for run in self._runs(keys):
            flat = self._read_run(run)
            pieces = self._cut(run, flat)
            if not is_finite(flat):
                raise self._not_finite(pieces)
            tensors |= pieces
        return tensors

    def read_to_copy(self, key: str) -> Tensor:
        """Read one tensor as `read` does, but with whatever numbers it holds: nothing will be computed with it."""
        return self._cut([key], self._read_run([key]))[key]

    def _runs(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """Group keys whose data follow each other in one dtype, up to RUN_BYTES."""
        entries = self.header.tensors
        run: list[str] = []
        for key in sorted(set(keys), key=lambda key: entries[key][2:]):
            entry, last = entries[key], entries[run[-1]] if run else None
            if last is not None and not (
                entry.start == last.stop
                and entry.dtype == last.dtype
                and entry.stop - entries[run[0]].start <= RUN_BYTES
            ):
                yield run
                run = []
            run.append(key)
        if run:
            yield run

    def _read_run(self, run: Sequence[str]) -> Tensor:
        """Return the numbers of neighbouring tensors, flat."""
        first, last = self.header.tensors[run[0]], self.header.tensors[run[-1]]
        if first.dtype not in TORCH_DTYPES:
            raise FileFormatError(
                f"{self.path.name} holds {run[0]!r} as {first.dtype}, which PyTorch cannot compute with."
            )
        data = torch.empty(last.stop - first.start, dtype=torch.uint8)
        self._file.seek(first.start)
        if self._file.readinto(data.numpy().data) != len(data):
            raise FileFormatError(
                f"{self.path.name} ended while {run[0]!r} was read: it was changed by another program."
            )
        return data.view(TORCH_DTYPES[first.dtype])

    def _cut(self, run: Sequence[str], flat: Tensor) -> dict[str, Tensor]:
        shapes = [self.header.tensors[key].shape for key in run]
        pieces = flat.split([math.prod(shape) for shape in shapes])
        return {
            key: piece.view(shape) for key, piece, shape in zip(run, pieces, shapes, strict=True)
        }

    def _not_finite(self, tensors: Mapping[str, Tensor]) -> FileFormatError:
        key = next(key for key, tensor in tensors.items() if not is_finite(tensor.view(-1)))
        count = int((~tensors[key].double().isfinite()).sum())
        return FileFormatError(
            f"{self.path.name}: tensor {key!r} holds {count:,} numbers that are NaN or infinite, of {tensors[key].numel():,}."
            " The file is damaged or its training failed; get it again, or take an earlier save."
        )

    def __enter__(self) -> TensorReader:
        self._file = self.path.open("rb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class TensorWriter:
    """A safetensors file in the making; a context manager that leaves the finished file, or nothing.

    entries: the dtype and shape of every tensor that will be written, in any order.
    """

    def __init__(
        self,
        path: Path | str,
        entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
    ) -> None:
        self.path = Path(path)
        self._head, self._entries = _lay_out(entries, metadata)
        self._missing = set(entries)

    def write(self, key: str, tensor: Tensor) -> None:
        """Write one tensor at its place; raises ValueError when it is not what was announced or was written before."""
        entry = self._entries[key]
        found = (_NAMES.get(tensor.dtype), tuple(tensor.shape))
        if found != (entry.dtype, entry.shape) or key not in self._missing:
            raise ValueError(
                f"{key!r} was announced once as {entry.dtype} {entry.shape}; got {found}"
            )
        self._file.seek(entry.start)
        self._file.write(raw_bytes(tensor))
        self._missing.remove(key)

    def __enter__(self) -> TensorWriter:
        with ExitStack() as stack:
            self._file = stack.enter_context(new_file(self.path))
            stack.push(self._check_complete)
            self._file.write(self._head)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def _check_complete(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._missing:
            raise ValueError(f"announced but not written: {', '.join(sorted(self._missing))}")


def write_tensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a whole safetensors file; an existing file is replaced at once or not at all."""
    entries = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    with TensorWriter(path, entries, metadata) as writer:
        for key, tensor in tensors.items():
            writer.write(key, tensor)


def file_order(dtypes: Mapping[str, torch.dtype]) -> list[str]:
    """Return the keys of tensors in the order in which their data lie in a file of ours."""
    return sorted(dtypes, key=lambda key: (_LAYOUT[_NAMES[dtypes[key]]], key))


def is_finite(flat: Tensor) -> bool:
    """Tell whether a flat tensor holds neither NaN nor infinity; every integer is finite.

    Works on the bits, piece by piece: several times faster than `isfinite`, without memory of the tensor's size, and for 8 bits too.
    """
    if flat.dtype not in _NOT_FINITE:
        return True
    integer, first_not_finite = _NOT_FINITE[flat.dtype]
    without_sign = torch.iinfo(integer).max
    pieces = flat.view(integer).split(RUN_BYTES // integer.itemsize)
    return all(
        int((piece & without_sign).max()) < first_not_finite for piece in pieces if len(piece)
    )


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor as a file holds them, row by row."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _lay_out(
    entries: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, TensorEntry]]:
    """Return the bytes before the data, and the entries with file offsets."""
    named = {key: (_NAMES[dtype], shape) for key, (dtype, shape) in entries.items()}
    content: dict[str, object] = (
        {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    )
    relative: dict[str, tuple[int, int]] = {}
    place = 0
    for key in file_order({key: dtype for key, (dtype, _) in entries.items()}):
        dtype, shape = named[key]
        relative[key] = (place, place + math.prod(shape) * ITEM_BYTES[dtype])
        content[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": list(relative[key])}
        place = relative[key][1]
    # A name that came from bytes which are no text holds lone surrogates, and no reader takes those.
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    placed = {
        key: TensorEntry(*named[key], start + first, start + last)
        for key, (first, last) in relative.items()
    }
    return len(text).to_bytes(8, "little") + text, placed
