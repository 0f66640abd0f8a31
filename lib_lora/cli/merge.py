"""`merge`: bake LoRAs into a checkpoint."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from lib_lora.errors import UsageError
from lib_lora.merge.bake import MergeReport, bake, check_output
from lib_lora.merge.plan import ACCEPTED_DTYPES, MODES, LoraChoice, MergePlan, plan_merge

EXAMPLE = (
    "example: python3 loom.py merge --base model.safetensors --lora style.safetensors=0.8"
    " --lora face.safetensors=1:0.5 --out merged.safetensors"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("merge", help="bake LoRAs into a checkpoint", epilog=EXAMPLE)
    parser.add_argument("--base", metavar="FILE", type=Path, required=True, help="the checkpoint")
    parser.add_argument(
        "--lora",
        metavar="FILE[=STRENGTH[:TE]]",
        action="append",
        required=True,
        help="a LoRA, its strength (1 when not given) and its strength on the text encoders (the same); may be repeated",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the new file")
    parser.add_argument(
        "--dtype",
        choices=ACCEPTED_DTYPES,
        default="same",
        help="the precision of the new file (default: the base's)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="exact",
        help="exact: as the networks were trained; live: as AUTOMATIC1111's WebUI v1.10.1 applies them, with what it leaves out or"
        " computes otherwise, and in the order given (default: exact)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would be done, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Plan the merge, carry it out unless it is a dry run, and print the report."""
    loras = [parse_choice(text) for text in args.lora]
    plan = plan_merge(args.base, loras, args.dtype, args.mode)
    check_output(plan, args.out)
    report = None if args.dry_run else bake(plan, args.out)
    told = report_of(plan, args.out, report)
    sys.stdout.write(f"{json.dumps(told, indent=2) if args.json else _text(told)}\n")
    return 0


def parse_choice(text: str) -> LoraChoice:
    """Read FILE[=STRENGTH[:TE]]; a name that holds `=` itself is a file when there is one. Raises UsageError."""
    file, equals, strengths = text.rpartition("=")
    if not equals or Path(text).is_file():
        return LoraChoice(Path(text))
    strength, colon, te_strength = strengths.partition(":")
    return LoraChoice(
        Path(file), _number(strength, text), _number(te_strength, text) if colon else None
    )


def _number(text: str, argument: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"{argument!r} has the strength {text!r}, which is no number."
            " Accepted: FILE, FILE=STRENGTH or FILE=STRENGTH:TE, such as style.safetensors=0.8:0.5."
        )
    return value


def report_of(plan: MergePlan, out: Path, report: MergeReport | None) -> dict[str, object]:
    """Return what `--json` prints; a merge that was carried out adds its file and sha256."""
    told: dict[str, object] = {
        "family": plan.base.family.id,
        "loras": [
            {
                "file": str(choice.file),
                "strength": choice.strength,
                "te_strength": choice.text_encoders,
                "matched": len(network.layers),
                "unmatched": [asdict(entry) for entry in network.unmatched],
                "types": sorted({layer.type.id for layer in network.layers.values()}),
            }
            for choice, network in zip(plan.choices, plan.networks, strict=True)
        ],
        "tensors_touched": len(plan.changes),
        "output_bytes": plan.output_bytes,
        "free_bytes": shutil.disk_usage(out.parent).free,
        "warnings": list(plan.warnings),
    }
    if report is not None:
        told |= {
            "output_bytes": report.output_bytes,
            "warnings": list(report.warnings),
            "file": str(report.file),
            "sha256": report.sha256,
        }
    return told


def _text(told: dict) -> str:
    lines = [
        f"{lora['file']}: {lora['matched']} layers ({', '.join(lora['types'])}),"
        f" strength {lora['strength']:g}, text encoders {lora['te_strength']:g}"
        for lora in told["loras"]
    ]
    done = f"written: {told['file']}" if "file" in told else "nothing written (dry run)"
    lines.append(
        f"{told['tensors_touched']} tensors changed, {told['output_bytes'] / 1e6:,.1f} MB; {done}"
    )
    lines += [f"warning: {sentence}" for sentence in told["warnings"]]
    return "\n".join(lines)
