"""The hashes by which the public tools know a file.

sshs_model_hash (kohya), AutoV3 (Civitai) and modelspec.hash_sha256 are all taken from the bytes after the header, so they do not
depend on the metadata; AutoV1 and AutoV2 (the WebUI's checkpoint hashes) from the whole file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from lib_lora.formats.header import read_header
from lib_lora.formats.stream import file_order, raw_bytes

CHUNK_BYTES = 1 << 20
AUTOV1_START, AUTOV1_BYTES = 0x100000, 0x10000


def file_sha256(path: Path) -> str:
    """Return the sha256 of the whole file."""
    return _sha256(path)


def autov1(path: Path) -> str:
    """Return the WebUI's old hash: 8 digits of the sha256 of the 64 KiB after the first MiB, whatever of them there is."""
    return _sha256(path, AUTOV1_START, AUTOV1_BYTES)[:8]


def autov2(path: Path) -> str:
    """Return the WebUI's hash of a checkpoint: 10 digits of the whole file's sha256."""
    return file_sha256(path)[:10]


def sshs_model_hash(path: Path) -> str:
    """Return the sha256 of the bytes after the header, kohya's hash of a network and the WebUI's of a LoRA."""
    return _sha256(path, read_header(path).data_start)


def autov3(path: Path) -> str:
    """Return the first 12 digits of `sshs_model_hash`."""
    return sshs_model_hash(path)[:12]


def modelspec_hash(path: Path) -> str:
    """Return `modelspec.hash_sha256`: `sshs_model_hash` after "0x"."""
    return f"0x{sshs_model_hash(path)}"


def file_hashes(path: Path) -> dict[str, str]:
    """Return every hash of a file by its public name, reading the file once."""
    data_start = read_header(path).data_start
    whole = hashlib.sha256()
    with path.open("rb") as file:
        whole.update(file.read(data_start))
        data = hashlib.sha256()
        while chunk := file.read(CHUNK_BYTES):
            whole.update(chunk)
            data.update(chunk)
    of_data = data.hexdigest()
    return {
        "sshs_model_hash": of_data,
        "autov1": autov1(path),
        "autov2": whole.hexdigest()[:10],
        "autov3": of_data[:12],
        "modelspec": f"0x{of_data}",
    }


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the `sshs_model_hash` that a file of these tensors will have."""
    digest = hashlib.sha256()
    for key in file_order({key: tensor.dtype for key, tensor in tensors.items()}):
        digest.update(raw_bytes(tensors[key]))
    return digest.hexdigest()


def _sha256(path: Path, start: int = 0, count: int | None = None) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path, start, count):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path, start: int, count: int | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        if count is not None:
            yield file.read(count)
            return
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
