"""`schedule`: tell the strength of every LoRA of a prompt at every evaluation, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from lib_lora.hosts.samplers import Walk, find_sampler, set_up
from lib_lora.schedule.curve import strengths_at
from lib_lora.schedule.grammar import Parsed, format_curve, parse_prompt

EXAMPLE = 'example: python3 loom.py schedule "a fox <lora:ink:0@0,1@0.5>" --steps 20'

Report = dict[str, list[dict[str, Any]]]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "schedule",
        help="tell the strengths of a prompt's LoRAs at every evaluation",
        epilog=EXAMPLE,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="holds <lora:NAME:...> tags")
    parser.add_argument("--steps", metavar="N", type=int, required=True)
    parser.add_argument("--sampler", metavar="S", default="Euler", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the schedule; a tag that is left out is told on the standard error stream and makes the command fail."""
    parsed = parse_prompt(args.prompt)
    report = schedule(parsed, set_up(find_sampler(args.sampler), args.steps))
    text = json.dumps(report, indent=2) if args.json else "\n".join(_lines(report))
    sys.stdout.write(f"{text}\n")
    for error in parsed.errors:
        sys.stderr.write(f"{error}\n")
    return 1 if parsed.errors else 0


def schedule(parsed: Parsed, walk: Walk) -> Report:
    """Return the tags with their UNet curves, and the strengths on the UNet at each evaluation of a walk."""
    loras: list[dict[str, Any]] = [
        {"name": use.name, "tag": use.source, "curve": format_curve(use.curves["unet"])}
        for use in parsed.uses
    ]
    moments = [walk.clock.moment(level) for level in walk.levels]
    steps: list[dict[str, Any]] = [
        {
            "evaluation": index,
            "step": moment.step,
            "progress": moment.progress,
            "strengths": strengths_at(parsed.uses, moment),
        }
        for index, moment in enumerate(moments)
    ]
    return {"loras": loras, "steps": steps}


def _lines(report: Report) -> Iterator[str]:
    names = list(dict.fromkeys(lora["name"] for lora in report["loras"]))
    yield "  ".join(["step   progress", *(f"{name:>8}" for name in names)])
    for row in report["steps"]:
        strengths = (f"{row['strengths'][name]:{max(8, len(name))}.3f}" for name in names)
        yield "  ".join([f"{row['step']:<5.4g}  {row['progress']:8.3f}", *strengths])
