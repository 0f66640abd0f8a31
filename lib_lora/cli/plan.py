"""`plan`: tell how much memory a training will need, and which savings make it fit, without loading anything."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lib_lora.families.sizes import NATIVE_SIZE, PUBLISHED
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.host import HostFlags
from lib_lora.train.config import TrainConfig
from lib_lora.train.memory import GB, Machine, machine_here
from lib_lora.train.memory_choices import choose
from lib_lora.train.memory_parts import ModelFacts, facts_of, published_facts

EXAMPLE = "example: python3 loom.py plan --family sdxl --size 1024 --vram 12 --medvram"
BAR = 40

Report = dict[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="tell how much memory a training will need", epilog=EXAMPLE
    )
    base = parser.add_mutually_exclusive_group(required=True)
    base.add_argument("--base", metavar="FILE", type=Path, help="the checkpoint to train on")
    base.add_argument("--family", metavar="F", help=f"one of: {', '.join(PUBLISHED)}")
    parser.add_argument("--size", metavar="S", type=int, help="default: the family's own")
    parser.add_argument(
        "--vram",
        metavar="GB",
        type=_gigabytes,
        help="plan for a graphics card with so much free; default: this machine",
    )
    switches = parser.add_mutually_exclusive_group()
    for memory in ("medvram", "lowvram"):
        switches.add_argument(
            f"--{memory}",
            dest="memory",
            action="store_const",
            const=memory,
            default="normal",
            help=f"begin as for a WebUI with --{memory}",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the plan; one that does not fit is a plan all the same."""
    facts = facts_of(open_checkpoint(args.base)) if args.base else published_facts(args.family)
    size = args.size or NATIVE_SIZE[facts.family.id]
    report = report_plan(facts, size, _machine(args.vram, args.memory))
    text = json.dumps(report, indent=2) if args.json else "\n".join(_lines(report))
    sys.stdout.write(f"{text}\n")
    return 0


def report_plan(facts: ModelFacts, size: int, machine: Machine) -> Report:
    """Return the plan of a training with the default settings but those that the machine decides. size: in pixels."""
    asked = {
        "model": {"base": "base.safetensors"},
        "data": {"folder": "pictures", "size": size},
        "saving": {"out": "network.safetensors"},
    }
    _, planned = choose(TrainConfig.from_dict(asked), facts, machine)
    return {
        "family": facts.family.id,
        "label": facts.family.label,
        "size": size,
        "device": machine.flags.device,
        "free_bytes": planned.free_bytes,
        "peak_bytes": planned.peak.bytes,
        "fits": planned.fits,
        "phases": [asdict(phase) for phase in planned.phases],
        "choices": [asdict(choice) for choice in planned.choices],
        "note": planned.label,
    }


def _gigabytes(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expects a number of GB above 0; found {text}")
    return number


def _machine(vram: float | None, memory: str) -> Machine:
    if vram is None:
        here = machine_here()
        return replace(here, flags=replace(here.flags, memory=memory))
    size = round(vram * GB)
    eight_bit = importlib.util.find_spec("bitsandbytes") is not None
    return Machine(size, size, HostFlags(memory=memory, device="cuda"), eight_bit=eight_bit)


def _lines(report: Report) -> Iterator[str]:
    free = report["free_bytes"]
    yield f"{report['label']} at {report['size']} px, {free / GB:.1f} GB free ({report['device']})"
    scale = BAR / max(free, report["peak_bytes"])
    for phase in report["phases"]:
        bar = "#" * round(phase["bytes"] * scale)
        yield f"  {phase['name']:<10}{phase['bytes'] / GB:6.1f} GB  {bar}"
    yield f"  {'free':<10}{free / GB:6.1f} GB  {'=' * round(free * scale)}"
    for sentence in dict.fromkeys(choice["sentence"] for choice in report["choices"]):
        yield f"  {sentence}"
    worst = max(report["phases"], key=lambda phase: phase["bytes"])
    if report["fits"]:
        yield "It fits."
    else:
        yield f"It does not fit: {worst['name']} needs {worst['bytes'] / GB:.1f} GB."
    yield f"({report['note']})"
