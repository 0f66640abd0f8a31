"""`generate`: make a picture on the standalone host, with scheduled LoRAs."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL.Image import Image
from PIL.PngImagePlugin import PngInfo

from lib_lora.demo.outputs import whole
from lib_lora.errors import UsageError
from lib_lora.host import Evaluation, Generated, GenerateRequest
from lib_lora.hosts.diffusers import DiffusersHost

EXAMPLE = (
    "example: python3 loom.py generate --base model.safetensors --lora-dir loras "
    '--prompt "a fox <lora:ink:0@0,1@0.5>" --out fox.png'
)
DEFAULTS = GenerateRequest(prompt="")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "generate", help="make a picture, with scheduled LoRAs", epilog=EXAMPLE
    )
    add = parser.add_argument
    add("--base", metavar="FILE", type=Path, required=True, help="the checkpoint")
    add("--prompt", metavar="TEXT", required=True, help="may hold <lora:NAME:...> tags")
    add("--negative", metavar="TEXT", default=DEFAULTS.negative, help="what it should not show")
    add("--steps", metavar="N", type=int, default=DEFAULTS.steps, help="default: %(default)s")
    add("--seed", metavar="N", type=int, default=DEFAULTS.seed, help="default: %(default)s")
    add("--size", metavar="WxH", help="in pixels; default: the size the base was trained on")
    add("--sampler", metavar="S", default="Euler", help="default: %(default)s")
    add("--cfg", metavar="G", type=float, default=DEFAULTS.guidance, help="default: %(default)s")
    add("--lora-dir", metavar="DIR", type=Path, action="append", default=[], help="may be repeated")
    add("--out", metavar="FILE.png", type=Path, required=True, help="the picture")
    add(
        "--trace",
        metavar="FILE.json",
        type=Path,
        help="every evaluation's noise level and strengths",
    )


def run(args: argparse.Namespace) -> int:
    """Draw the picture, write it with its settings, and the trace when asked for."""
    check_file(args.out, ".png")
    if args.trace is not None:
        check_file(args.trace, ".json")
    for folder in args.lora_dir:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder.")
    size = None if args.size is None else _size(args.size)
    host = DiffusersHost(args.base, args.lora_dir)
    width, height = size or (host.native_size, host.native_size)
    request = GenerateRequest(
        prompt=args.prompt,
        negative=args.negative,
        steps=args.steps,
        sampler=args.sampler,
        guidance=args.cfg,
        width=width,
        height=height,
        seed=args.seed,
    )
    made = host.generate(request)
    for note in made.notes:
        sys.stderr.write(f"{note}\n")
    save_picture(made.image, infotext(request, args.base.stem, made.notes), args.out)
    if args.trace is not None:
        args.trace.parent.mkdir(parents=True, exist_ok=True)
        with whole(args.trace) as part:
            part.write_text(json.dumps(trace_rows(made), indent=1) + "\n", encoding="utf-8")
    return 0


def check_file(file: Path, suffix: str) -> None:
    """Refuse a file that could not be written once the picture is drawn, or that is of another kind, as a base model is."""
    if file.suffix.lower() != suffix or file.is_dir():
        raise UsageError(f"{str(file)!r} is not accepted here: name a file that ends in {suffix}.")
    folder = next(path for path in file.absolute().parents if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{str(file)!r} cannot be written: {str(folder)!r} is no folder to write in."
        )


def infotext(request: GenerateRequest, model: str, notes: Sequence[str]) -> str:
    """Return a picture's settings as the WebUI writes and reads them: prompt, negative prompt, then "key: value" pairs."""
    settings = {
        "Steps": request.steps,
        "Sampler": request.sampler,
        "CFG scale": request.guidance,
        "Seed": request.seed,
        "Size": f"{request.width}x{request.height}",
        "Model": model,
    }
    if notes:
        settings["Loom errors"] = " ".join(notes)
    negative = [f"Negative prompt: {request.negative}"] if request.negative else []
    pairs = ", ".join(f"{key}: {_quoted(str(value))}" for key, value in settings.items())
    return "\n".join([request.prompt, *negative, pairs])


def save_picture(image: Image, parameters: str, out: Path) -> None:
    """Write a PNG that carries its settings; an existing file is replaced at once or not at all."""
    chunks = PngInfo()
    chunks.add_itxt("parameters", parameters)
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out) as part:
        image.save(part, format="PNG", pnginfo=chunks)


def trace_rows(made: Generated) -> list[dict[str, object]]:
    """Return one row per evaluation of the UNet: sigma, step and the strength of each LoRA."""
    return [_row(index, evaluation) for index, evaluation in enumerate(made.trace)]


def _row(index: int, evaluation: Evaluation) -> dict[str, object]:
    return {
        "evaluation": index,
        "sigma": evaluation.sigma,
        "step": evaluation.step,
        "strengths": dict(evaluation.strengths),
    }


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if match is None:
        raise UsageError(f"--size {text!r}: WIDTHxHEIGHT in pixels is accepted, such as 512x768.")
    return int(match[1]), int(match[2])


def _quoted(value: str) -> str:
    """Return a value as JSON text where a comma, a colon or a line break would end it early."""
    return json.dumps(value, ensure_ascii=False) if re.search(r"[,:\n]", value) else value
