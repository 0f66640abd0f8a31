"""`demo`: train a LoRA on the embedded base model, schedule it, merge it, and show the pictures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lib_lora.cli.progress import ProgressLine
from lib_lora.demo.report import Report, shortfalls, told_figures

EXAMPLE = "example: python3 loom.py demo --out out --data my-pictures"
DONE, FELL_SHORT = 0, 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train, schedule and merge a LoRA on the embedded base model, with pictures",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("out"), help="where to write (default: out)"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help="a folder of your own pictures, with .txt captions beside them or none (default: the bundled ones)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="the seed (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Run the demo and tell its figures; with the bundled pictures, a figure that falls short makes the exit code 1."""
    # Imported late: it brings torch along, and --help must not wait for that.
    from lib_lora.demo.run import Demo, DemoRequest

    line = ProgressLine()
    report = Demo(DemoRequest(out=args.out, data=args.data, seed=args.seed), line).run()
    code, sentences = outcome(report)
    for sentence in sentences:
        line.tell(sentence)
    told = [*told_figures(report), f"Finished in {report.seconds['total']:.0f} s"]
    sys.stdout.write("\n".join([*told, f"Look at {args.out / 'contact_sheet.png'}", ""]))
    return code


def outcome(report: Report) -> tuple[int, list[str]]:
    """Return the exit code and what is to be said: a figure that falls short is an error, or with own pictures a warning."""
    missed = shortfalls(report)
    if report.concept is None:
        return DONE, [f"Warning: {sentence}" for sentence in (*report.notes, *missed)]
    return FELL_SHORT if missed else DONE, [*report.notes, *missed]
