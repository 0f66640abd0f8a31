"""`inspect`: tell what is in a LoRA or a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from lib_lora.formats.describe import ORIGINAL, FileReport, describe
from lib_lora.formats.metadata import ToldTraining, told_training

EXAMPLE = "example: python3 loom.py inspect my-style.safetensors"
SHOWN_UNMATCHED, SHOWN_TAGS, SHOWN_FOLDERS = 8, 12, 6
SHOWN_LETTERS = 160
BAR = 30  # characters of the strongest block's bar

# The keys of the JSON object, which scripts rely on.
JSON_KEYS = (
    *("family", "dialect", "types", "layers", "components", "ranks", "alphas"),
    *("unmatched", "problems", "hashes", "metadata"),
)

# What a person wants to know of a training, in the order in which they ask.
TOLD_METADATA = (
    ("name", "ss_output_name"),
    ("title", "modelspec.title"),
    ("author", "modelspec.author"),
    ("date", "modelspec.date"),
    ("trained on", "ss_sd_model_name"),
    ("base version", "ss_base_model_version"),
    ("resolution", "ss_resolution"),
    ("pictures", "ss_num_train_images"),
    ("epochs", "ss_num_epochs"),
    ("steps", "ss_steps"),
    ("learning rate", "ss_learning_rate"),
    ("optimizer", "ss_optimizer"),
    ("seed", "ss_seed"),
    ("comment", "ss_training_comment"),
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
        content = asdict(report)
        text = json.dumps({key: content[key] for key in JSON_KEYS}, indent=2)
    else:
        text = "\n".join(_lines(args.file, report))
    sys.stdout.write(f"{text}\n")
    return 0


def _lines(file: Path, report: FileReport) -> Iterator[str]:
    training = told_training(report.metadata)
    kind = "checkpoint" if report.dialect == ORIGINAL else "network"
    yield f"{_printable(file.name)}: a {kind}"
    yield _line("family", report.label)
    yield _line("names", report.dialect)
    yield _line("layers", f"{report.layers} ({_counts(report.components)})")
    if report.types:
        yield _line("type", ", ".join(report.types))
    if report.ranks:
        yield _line("rank", _values(report.ranks))
        yield _line("alpha", _values(report.alphas))
    yield from _section("Training", _training(report.metadata, training))
    yield from _section("Added by each block at strength 1", _blocks(report.block_norms))
    yield from _section("Hashes", (_line(name, value) for name, value in report.hashes.items()))
    yield from _section("Not applied", _unmatched(report))
    yield from _section("Problems", _problems(report, training))


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    """Put a title before lines, if there are any."""
    first = next(lines, None)
    if first is not None:
        yield from ("", title, first)
        yield from lines


def _training(metadata: Mapping[str, str], training: ToldTraining) -> Iterator[str]:
    if training.trigger:
        yield _line("trigger", ", ".join(training.trigger))
    for label, key in TOLD_METADATA:
        if metadata.get(key, "None") != "None":
            yield _line(label, metadata[key])
    for folder in training.folders[:SHOWN_FOLDERS]:
        yield _line("folder", f"{folder.name}: {folder.images} pictures, {folder.repeats} times")
    if len(training.folders) > SHOWN_FOLDERS:
        yield _line("", f"and {len(training.folders) - SHOWN_FOLDERS} more folders")
    for tag, count in training.tags[:SHOWN_TAGS]:
        yield _line("tag", f"{count:>6}  {tag}")
    if len(training.tags) > SHOWN_TAGS:
        yield _line("", f"and {len(training.tags) - SHOWN_TAGS} more tags; --json names them all")


def _blocks(norms: Mapping[str, float]) -> Iterator[str]:
    strongest = max(norms.values(), default=0.0) or 1.0
    for block, norm in norms.items():
        bar = "#" * round(BAR * norm / strongest)
        yield _line(block, f"{norm:>9.3g}  {bar}".rstrip())


def _unmatched(report: FileReport) -> Iterator[str]:
    if report.dialect == ORIGINAL:
        if report.unmatched:
            yield _line("kept as is", f"{len(report.unmatched)} tensors that are no layers")
        return
    for entry in report.unmatched[:SHOWN_UNMATCHED]:
        yield f"  {_printable(f'{entry.tensor}: {entry.reason}')}"
    beyond = len(report.unmatched) - SHOWN_UNMATCHED
    if beyond > 0:
        yield f"  and {beyond} more; --json names them all"


def _problems(report: FileReport, training: ToldTraining) -> Iterator[str]:
    for problem in report.problems:
        yield f"  {_printable(problem, len(problem))}"
    for key in training.unreadable:
        yield f"  The metadata {key!r} cannot be read."
    if not report.problems and not training.unreadable:
        yield "  none"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _values(counts: Mapping[str, int]) -> str:
    """Return the value when there is one, else each with its number of layers."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({count} layers)" for value, count in counts.items())


def _line(label: str, text: str) -> str:
    return f"  {label:<17}{_printable(text)}"


def _printable(text: str, letters: int = SHOWN_LETTERS) -> str:
    """Return a text from a file so that it can do nothing to a terminal: no control characters, no endless line."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: letters + 1])
    return shown if len(shown) <= letters else f"{shown[:letters]}..."
