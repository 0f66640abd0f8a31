"""`convert`: write a LoRA in another dialect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lib_lora.merge.convert import DIALECTS, ConvertReport, convert

EXAMPLE = "example: python3 loom.py convert style.safetensors --to diffusers --out style-diffusers.safetensors"
SHOWN_UNMATCHED = 8


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("convert", help="write a LoRA in another dialect", epilog=EXAMPLE)
    parser.add_argument("file", metavar="FILE", type=Path, help="a LoRA, or a folder of PEFT's")
    parser.add_argument(
        "--to",
        choices=DIALECTS,
        required=True,
        help="how layers are named: kohya (the WebUI), diffusers, peft, comfy (ComfyUI's generic names) or onetrainer",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="the new file; a name without .safetensors is a new folder (peft only)",
    )
    parser.add_argument(
        "--base",
        metavar="FILE",
        type=Path,
        help="a checkpoint that the LoRA is made for, where its family cannot be told from its names",
    )


def run(args: argparse.Namespace) -> int:
    """Convert and tell what was written and what was left out."""
    report = convert(args.file, args.to, args.out, args.base)
    sys.stdout.write(f"{_text(report, args.to)}\n")
    return 0


def _text(report: ConvertReport, dialect: str) -> str:
    lines = [
        f"{report.layers} layers of {report.family.label}, from {report.dialect} to {dialect};"
        f" written: {report.file}"
    ]
    shown = report.unmatched[:SHOWN_UNMATCHED]
    lines += [f"left out: {entry.tensor}: {entry.reason}" for entry in shown]
    beyond = len(report.unmatched) - len(shown)
    if beyond:
        lines.append(f"and {beyond} more; inspect --json names them all")
    return "\n".join(lines)
