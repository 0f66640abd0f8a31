"""`dataset report`: tell what a training would make of a folder of pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lib_lora.errors import UsageError
from lib_lora.train.dataset_report import DatasetReport, report

EXAMPLE = "example: python3 loom.py dataset report pictures --size 1024"
SHOWN_FILES = 20
SIZES = (64, 2048)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("dataset", help="look through a folder of pictures")
    actions = parser.add_subparsers(dest="action", required=True)
    told = actions.add_parser(
        "report", help="tell what a training would make of it", epilog=EXAMPLE
    )
    told.add_argument("folder", metavar="DIR", type=Path, help="the folder of pictures")
    told.add_argument("--size", type=int, default=512, help="the training size (default: 512)")
    told.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report of a folder."""
    if not SIZES[0] <= args.size <= SIZES[1]:
        raise UsageError(f"--size accepts {SIZES[0]} to {SIZES[1]} pixels; found {args.size}.")
    found = report(args.folder, args.size)
    text = json.dumps(found.to_dict(), indent=2) if args.json else "\n".join(_lines(found))
    sys.stdout.write(f"{text}\n")
    return 0


def _lines(found: DatasetReport) -> Iterator[str]:
    yield f"{found.folder}: {found.pictures} pictures, {found.captioned} with a caption, {found.samples} samples an epoch"
    if found.smallest and found.largest:
        yield f"sizes     {'x'.join(map(str, found.smallest))} to {'x'.join(map(str, found.largest))}"
    for place in found.folders:
        yield f"folder    {place.name}: {place.pictures} pictures, {place.repeats} times"
    for bucket in found.buckets:
        yield f"bucket    {bucket.width}x{bucket.height}: {bucket.pictures} pictures"
    if found.tags:
        yield f"tags      {', '.join(f'{each.tag} ({each.pictures})' for each in found.tags)}"
    for problem in found.left_out[:SHOWN_FILES]:
        yield f"left out  {problem.file} {problem.reason}"
    if len(found.left_out) > SHOWN_FILES:
        yield f"left out  {len(found.left_out) - SHOWN_FILES} more files; --json names all"
    for sentence in found.advice:
        yield f"advice    {sentence}"
