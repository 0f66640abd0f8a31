"""`train`: train a LoRA in a worker of its own and show how it comes along."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from lib_lora.cli.options import add_runs_folder
from lib_lora.cli.progress import ProgressLine, follow_run
from lib_lora.errors import LoraError, UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.jobs.client import POLL_SECONDS, Run, check_resumable, latest
from lib_lora.jobs.queue import Queue
from lib_lora.train.config import TrainConfig, with_settings
from lib_lora.train.presets import PRESETS, beneath, preset_settings

EXAMPLE = (
    "example: python3 loom.py train --base model.safetensors --data pictures --out style.safetensors"
    " --set schedule.steps=800 --set network.rank=8"
)
DONE, STOPPED = 0, 130
OWNER = "the command line"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("train", help="train a LoRA", epilog=EXAMPLE)
    parser.add_argument(
        "config", metavar="CONFIG.json", nargs="?", type=Path, help="what to do, in sections"
    )
    parser.add_argument("--base", metavar="FILE", help="the checkpoint to train on")
    parser.add_argument("--data", metavar="DIR", help="the folder of pictures and .txt captions")
    parser.add_argument("--out", metavar="FILE", help="the LoRA file to write")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"begin with the settings for: {', '.join(PRESETS)}",
    )
    parser.add_argument(
        "--set",
        metavar="section.key=value",
        dest="settings",
        action="append",
        default=[],
        help="any other setting, such as schedule.steps=800; may be repeated",
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with a run: its folder, its name, or latest"
    )
    add_runs_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Start or resume the run, follow it to its end and say what came of it."""
    if args.resume is not None:
        if args.config or args.base or args.data or args.out or args.preset or args.settings:
            raise UsageError(
                "A resumed run keeps its configuration: --resume takes no other setting."
            )
        folder = _find_run(args.resume, args.runs).absolute()
        training = Run(folder)
        seen = training.state().seq
        check_resumable(training)
        queue = Queue(folder.parent, OWNER)
        queue.command(training, "resume")
    else:
        config = TrainConfig.from_dict(_asked(args), Path.cwd())
        seen = 0
        queue = Queue(args.runs, OWNER)
        training = queue.add("train", config.to_dict())
    line = ProgressLine()
    _await_turn(queue, training, line)
    state = follow_run(training, line, seen)
    if state.status == "done":
        sys.stdout.write(f"{state.result['file']}\n")
        return DONE
    again = f"python3 loom.py train --resume {training.folder}"
    if state.status in ("stopped", "paused"):
        step = state.result["step"]
        said = state.message or f"{state.status.capitalize()} after step {step}."
        sys.stderr.write(f"{said}\nGo on with: {again}\n")
        return STOPPED
    if state.status == "dead":
        raise LoraError(f"{state.message}\nGo on with: {again}")
    raise LoraError(state.message)


def _await_turn(queue: Queue, run: Run, line: ProgressLine) -> None:
    """Start the run, after those that were in the queue before it; Ctrl-C takes it out again."""
    told = False
    try:
        while run.state().status == "queued":
            queue.pump()
            if run.state().status == "queued" and not told:
                line.tell(f"{run.id} waits in the queue of {queue.root}.")
                told = True
            time.sleep(POLL_SECONDS if told else 0)
    except KeyboardInterrupt:
        if run.state().status == "queued":
            queue.command(run, "stop")
        raise


def _asked(args: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Put the preset, the configuration file, the options and the settings together; the later ones win."""
    raw = _read(args.config) if args.config else {}
    options = {"model.base": args.base, "data.folder": args.data, "saving.out": args.out}
    given = [f"{name}={value}" for name, value in options.items() if value]
    asked = with_settings(raw, [*given, *args.settings])
    if args.preset is None:
        return asked
    base = asked.get("model", {}).get("base")
    family = open_checkpoint(Path(str(base))).family.id if base else None
    return beneath(asked, preset_settings(args.preset, family))


def _read(file: Path) -> dict[str, dict[str, object]]:
    try:
        raw = json.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}.") from None
    if not isinstance(raw, dict) or not all(isinstance(each, dict) for each in raw.values()):
        raise UsageError(
            f'{file} holds no sections; a configuration reads {{"section": {{"key": value}}}}.'
        )
    return raw


def _find_run(name: str, root: Path) -> Path:
    if name == "latest":
        return latest(root)
    return next((folder for folder in (Path(name), root / name) if folder.is_dir()), Path(name))
