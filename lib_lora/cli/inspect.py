"""`inspect`: tell what is in a LoRA or a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from lib_lora.formats.describe import ORIGINAL, FileReport, describe

EXAMPLE = "example: python3 loom.py inspect my-style.safetensors"
SHOWN_UNMATCHED = 8

# What a person wants to know of a training, in the order in which they ask.
TOLD_METADATA = (
    ("name", "ss_output_name"),
    ("trigger", "modelspec.trigger_phrase"),
    ("trained on", "ss_sd_model_name"),
    ("resolution", "ss_resolution"),
    ("pictures", "ss_num_train_images"),
    ("steps", "ss_steps"),
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect", help="tell what is in a LoRA or a checkpoint", epilog=EXAMPLE
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a .safetensors file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report of a file."""
    report = describe(args.file)
    if args.json:
        text = json.dumps(asdict(report), indent=2)
    else:
        text = "\n".join(_lines(args.file, report))
    sys.stdout.write(f"{text}\n")
    return 0


def _lines(file: Path, report: FileReport) -> Iterator[str]:
    yield _title(file, report)
    yield ""
    yield _line("layers", f"{report.layers} ({_counts(report.components)})")
    if report.types:
        yield _line("type", ", ".join(report.types))
        yield _line("rank", _values(report.ranks))
        yield _line("alpha", _values(report.alphas))
    for label, key in TOLD_METADATA:
        if key in report.metadata:
            yield _line(label, report.metadata[key])
    for name, value in report.hashes.items():
        yield _line(name, value)
    yield from _unmatched(report)
    for problem in report.problems:
        yield _line("problem", problem)


def _title(file: Path, report: FileReport) -> str:
    kind = "a checkpoint" if report.dialect == ORIGINAL else f"a network, {report.dialect} names"
    return f"{file.name}: {kind}, family {report.family or 'unknown'}"


def _unmatched(report: FileReport) -> Iterator[str]:
    if report.dialect == ORIGINAL:
        yield _line("kept as is", f"{len(report.unmatched)} tensors that are no layers")
        return
    for entry in report.unmatched[:SHOWN_UNMATCHED]:
        yield _line("not applied", f"{entry.tensor}: {entry.reason}")
    beyond = len(report.unmatched) - SHOWN_UNMATCHED
    if beyond > 0:
        yield _line("", f"and {beyond} more; --json names them all")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _values(counts: Mapping[str, int]) -> str:
    """Return the value when there is one, else each with its number of layers."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({count} layers)" for value, count in counts.items())


def _line(label: str, text: str) -> str:
    return f"  {label:<16}{text}"
