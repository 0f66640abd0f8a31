"""Trains one lesson in a worker of its own and tells what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lib_lora.cli.progress import ProgressLine, follow_run
from lib_lora.demo.report import ValidationLoss
from lib_lora.errors import LoraError
from lib_lora.jobs.client import Run, start


@dataclass(frozen=True, slots=True)
class Taught:
    """A finished training: the loss of every step, and the validation loss before and after."""

    losses: tuple[float, ...]
    validation: ValidationLoss


def teach(config: Mapping[str, object], folder: Path, line: ProgressLine) -> Taught:
    """Train in a new run folder and follow the worker; raises LoraError when it fails, KeyboardInterrupt when it is stopped."""
    run = start("train", config, folder)
    state = follow_run(run, line)
    if state.status == "stopped":
        raise KeyboardInterrupt
    if state.status != "done":
        raise LoraError(state.message)
    validations = told_losses(run, "validation")
    return Taught(told_losses(run, "step"), ValidationLoss(validations[0], validations[-1]))


def told_losses(run: Run, kind: str) -> tuple[float, ...]:
    """Return the losses that the events of one kind tell, in their order."""
    return tuple(cast("float", each.data["loss"]) for each in run.events() if each.kind == kind)
