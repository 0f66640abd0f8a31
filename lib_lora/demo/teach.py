"""Trains one lesson in a worker of its own and tells what came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib_lora.cli.progress import ProgressLine, follow_run
from lib_lora.demo.report import ValidationLoss
from lib_lora.errors import LoraError, UsageError
from lib_lora.jobs.client import Run, start

HELLO_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Taught:
    """A finished training: the loss of every step, and the validation loss before and after."""

    losses: tuple[float, ...]
    validation: ValidationLoss


def teach(config: Mapping[str, object], folder: Path, line: ProgressLine) -> Taught:
    """Train in a new run folder and follow the worker; raises LoraError when it fails, KeyboardInterrupt when it is stopped."""
    try:
        run = start("train", config, folder)
    except KeyboardInterrupt:
        stop_starting(Run(folder))
        raise
    state = follow_run(run, line)
    if state.status == "stopped":
        raise KeyboardInterrupt
    if state.status != "done":
        raise LoraError(state.message)
    events = run.events()
    losses = [event.data["loss"] for event in events if event.kind == "step"]
    validations = [event.data["loss"] for event in events if event.kind == "validation"]
    return Taught(tuple(losses), ValidationLoss(validations[0], validations[-1]))


def stop_starting(run: Run) -> None:
    """Stop a worker that may be on its way up: it hears commands only once it has said hello."""
    end = time.monotonic() + HELLO_SECONDS
    while not run.events() and time.monotonic() < end:
        time.sleep(0.1)
    with contextlib.suppress(UsageError):
        run.command("stop")
    run.wait(HELLO_SECONDS)
