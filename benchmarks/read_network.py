"""How long it takes to read a LoRA, beside the safetensors library, to refuse a hostile one, and to import what reads it.

Run as `python3 -m benchmarks.read_network`. The file has SDXL's layers under kohya's names: 2,500 tensors in fp16, 200 MB, warm in the
system's cache. All is timed in one process and in turns, so that the ratios hold on a busy machine too; the times do not.
"""

from __future__ import annotations

import gzip
import importlib
import json
import statistics
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import detect_family
from lib_lora.families.table import Family, Layer
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.formats.stream import TensorReader, is_finite
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP
from tests.formats.hostile import LARGE

ROOT = Path(__file__).resolve().parents[1]

ROUNDS = 9
LAYERS, FILE_BYTES = 833, 200_000_000  # three tensors a layer
ALLOWED_ABOVE_LOAD_FILE, ALLOWED_IMPORT = 0.060, 0.100  # seconds
ALLOWED_REFUSAL, ALLOWED_REFUSAL_BYTES = 0.100, 50 * 2**20
PARTS = ("lib_lora.networks", "lib_lora.families", "lib_lora.formats", "lib_lora.errors")
CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn)


def main() -> None:
    """Make the file, measure and print."""
    shapes = _sdxl_shapes()
    family = detect_family(shapes)
    layers = family.layers(shapes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sdxl.safetensors"
        _write(file, family, layers)
        _print_reading(file, family, layers)
        _print_refusing(Path(folder) / "hostile.safetensors")
    _print_checking()
    _print_importing()


def _sdxl_shapes() -> dict[str, tuple[int, ...]]:
    recorded = ROOT / "tests" / "golden" / "other_families.json.gz"
    components = json.loads(gzip.decompress(recorded.read_bytes()))["sdxl-base"]["components"]
    rows = [row for part in components.values() for row in part]
    return {row[1]: tuple(row[2]) for row in rows if row[2] is not None}


def _write(file: Path, family: Family, layers: dict[str, Layer]) -> None:
    trained = [
        layer for layer in layers.values() if layer.path.endswith(family.trained_by_default)
    ][:LAYERS]
    per_rank = sum(layer.shape[0] + layer.shape[1] for layer in trained)
    rank = FILE_BYTES // (2 * per_rank)
    draw = torch.Generator().manual_seed(0)
    tensors = {
        layer.id: {
            DOWN: torch.randn(rank, *layer.shape[1:], generator=draw).half(),
            UP: torch.randn(layer.shape[0], rank, *layer.shape[2:], generator=draw).half(),
            ALPHA: torch.tensor(float(rank)).half(),
        }
        for layer in trained
    }
    write_network(file, tensors, layers, family.components)


def _print_reading(file: Path, family: Family, layers: dict[str, Layer]) -> None:
    def all_tensors() -> None:
        with TensorReader(file) as reader:
            reader.read_many(reader.header.tensors)

    times = _in_turns(
        {
            "safetensors load_file": lambda: load_file(file),
            "read_network": lambda: read_network(file, layers, family.components),
            "  its header": lambda: read_header(file),
            "  its header and tensors": all_tensors,
        }
    )
    theirs, ours = (statistics.median(times[n]) for n in ("safetensors load_file", "read_network"))
    tensors = len(read_header(file).tensors)
    print(
        f"Reading {file.stat().st_size / 1e6:.0f} MB, {tensors} tensors, {ROUNDS} rounds in turns"
    )
    _print_times(times, theirs)
    _print_verdict("read_network above load_file", ours - theirs, ALLOWED_ABOVE_LOAD_FILE)


def _print_refusing(file: Path) -> None:
    """Print the processor time and the memory that it takes to refuse headers of the greatest length."""

    def refuse() -> None:
        with suppress(FileFormatError):
            read_header(file)
            raise AssertionError(f"{name} was accepted.")

    print(f"\nRefusing headers of 25 MB, the least of {ROUNDS} rounds")
    slowest, largest = 0.0, 0
    for name, make in LARGE.items():
        header = make()
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        del header
        seconds = min(_processor_seconds(refuse) for _ in range(ROUNDS))
        tracemalloc.start()
        refuse()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"  {name:<36}{seconds * 1e3:>7.1f} ms{peak / 2**20:>8.1f} MiB")
        slowest, largest = max(slowest, seconds), max(largest, peak)
    _print_verdict("the slowest", slowest, ALLOWED_REFUSAL)
    verdict = "within" if largest <= ALLOWED_REFUSAL_BYTES else "OVER"
    print(f"  the largest: {largest / 2**20:.0f} MiB, {verdict} the 50 MiB allowed")


def _processor_seconds(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def _print_checking() -> None:
    """Print how fast NaN is looked for, beside one pass over the same memory that only reads it."""
    bytes_ = torch.randint(0, 60, (FILE_BYTES,), dtype=torch.uint8)  # no exponent of ones
    work = {"reading memory": lambda: bytes_.view(torch.int64).max()}
    for dtype in CHECKED:
        flat = bytes_.view(dtype)
        work[str(dtype)] = lambda flat=flat: is_finite(flat)
    times = _in_turns(work)
    print(f"\nLooking for NaN in {FILE_BYTES / 1e6:.0f} MB on {torch.get_num_threads()} threads")
    _print_times(times, statistics.median(times["reading memory"]))
    slowest = max(statistics.median(times[str(dtype)]) for dtype in CHECKED)
    _print_verdict("the slowest, for 1 GB", slowest * 1e9 / FILE_BYTES, 1.0)


def _print_importing() -> None:
    """Print how long importing takes as Python does it, which compiles a module once and keeps the result, and without that."""

    def again(keep: bool, folder: str) -> None:
        sys.dont_write_bytecode, sys.pycache_prefix = not keep, folder
        for name in [name for name in sys.modules if name.startswith(PARTS)]:
            del sys.modules[name]
        for folder in ("networks", "formats"):
            for module in sorted((ROOT / "lib_lora" / folder).glob("[!_]*.py")):
                importlib.import_module(f"lib_lora.{folder}.{module.stem}")

    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
        times = _in_turns(
            {
                "import networks, formats": lambda: again(True, kept),
                "  compiling them first": lambda: again(False, empty),
            }
        )
    print("\nImporting, torch already imported")
    median = statistics.median(times["import networks, formats"])
    _print_times(times, median)
    _print_verdict("import", median, ALLOWED_IMPORT)


def _in_turns(work: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(ROUNDS + 1):  # the first one warms up
        for name, task in work.items():
            start = time.perf_counter()
            task()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def _print_times(times: dict[str, list[float]], unit: float) -> None:
    print(f"  {'':<26}{'min':>10}{'median':>10}{'spread':>10}{'ratio':>8}")
    for name, taken in times.items():
        median, least = statistics.median(taken), min(taken)
        numbers = (least, median, max(taken) - least)
        columns = "".join(f"{number * 1e3:>7.1f} ms" for number in numbers)
        print(f"  {name:<26}{columns}{median / unit:>8.2f}")


def _print_verdict(what: str, seconds: float, allowed: float) -> None:
    verdict = "within" if seconds <= allowed else "OVER"
    print(f"  {what}: {seconds * 1e3:.0f} ms, {verdict} the {allowed * 1e3:.0f} ms allowed")


if __name__ == "__main__":
    main()
