"""The process that does the work of a run: `python -m lib_lora.jobs.worker RUN_DIR`.

It tells what happens in the run's events and looks for commands between two steps; there are no signals, so that it is the same on
every system. A second worker on the same run goes on from the state that the first one left.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lib_lora.errors import FileFormatError, LoraError, did_you_mean
from lib_lora.formats.place import remove, remove_partial
from lib_lora.jobs.offline import OFFLINE
from lib_lora.jobs.owner import Owner, release, take
from lib_lora.jobs.protocol import (
    BEAT_SECONDS,
    COMMANDS,
    Command,
    EventLog,
    RunFolder,
    pending_commands,
    read_events,
    write_json,
)

log = logging.getLogger(__name__)

LAST_WORD_SECONDS = 5.0
# PyTorch has a class of error for a full device alone; a full main memory and what libraries find out are told in words.
NO_MEMORY = re.compile(
    r"out of memory|not enough memory|allocate memory|ALLOC_FAILED|WinError 1455"
)


class Reporter:
    """Turns what the work tells into events, and commands into what the work is asked."""

    def __init__(self, folder: RunFolder, events: EventLog) -> None:
        self._folder, self._events = folder, events
        self._current: Command | None = None

    def stage(self, name: str, step: int = 0, total: int = 0) -> None:
        """Tell that a stage begins or has come this far."""
        self._events.write("stage", {"name": name, "step": step, "total": total})

    def step(self, step: int, total: int, loss: float, rate: float, seconds_left: float) -> None:
        """Tell that a step is done; steps count from 1."""
        told = {"step": step, "total": total, "loss": loss, "rate": rate}
        self._events.write("step", {**told, "seconds_left": round(seconds_left, 1)})

    def pace(
        self, seconds_per_step: float, steps_per_epoch: int, total: int, sentence: str
    ) -> None:
        """Tell how fast the steps go, and why they are slow."""
        told = {"seconds_per_step": seconds_per_step, "steps_per_epoch": steps_per_epoch}
        times = {
            "epoch_seconds": seconds_per_step * steps_per_epoch,
            "run_seconds": seconds_per_step * total,
        }
        self._events.write("pace", {**told, **times, "total": total, "sentence": sentence})

    def validation(self, step: int, loss: float) -> None:
        """Tell the loss on the fixed draws after so many steps."""
        self._events.write("validation", {"step": step, "loss": loss})

    def saved(self, file: str, step: int) -> None:
        """Tell that a file was written after so many steps."""
        self._events.write("saved", {"file": file, "step": step})

    def sample(self, file: str, step: int, prompt: str, seed: int) -> None:
        """Tell that a picture was made with the network as it is after so many steps."""
        self._events.write("sample", {"file": file, "step": step, "prompt": prompt, "seed": seed})

    def disk(self, needed: int, free: int) -> None:
        """Tell how many bytes the run will still write into its folder, and how many the disk has free."""
        self._events.write("disk", {"needed": needed, "free": free})

    def note(self, sentence: str) -> None:
        """Tell a sentence for the person."""
        self._events.write("note", {"text": sentence})

    def asked(self) -> str | None:
        """Return the name of the oldest command that is not answered yet; what is no command is answered here."""
        while self._current is None:
            pending = pending_commands(self._folder)
            if not pending:
                return None
            self._current = pending[0]
            if self._current.name not in COMMANDS:
                self.answer(f"Not understood. {did_you_mean(self._current.name, COMMANDS)}")
        return self._current.name

    def answer(self, result: str) -> None:
        """Answer the command that `asked` returned last."""
        if self._current is not None:
            told = {"id": self._current.id, "command": self._current.name, "result": result}
            self._events.write("command", told)
            remove(self._folder.commands / f"{self._current.id}.json")
            self._current = None

    def answer_all(self, result: str) -> None:
        """Answer every command that is there in the same way."""
        while self.asked():
            self.answer(result)


Work = Callable[[Mapping[str, object], RunFolder, Reporter], tuple[str, dict[str, object]]]
"""(config, folder, reporter) -> how it ended, "done", "stopped" or "paused", and what the ending tells."""


def train(
    config: Mapping[str, object], folder: RunFolder, reporter: Reporter
) -> tuple[str, dict[str, object]]:
    """Train a network."""
    import torch

    from lib_lora.train.config import TrainConfig
    from lib_lora.train.training import train as train_network

    asked = TrainConfig.from_dict(config)
    facts = run_facts(folder, torch.__version__, asked.run.threads or torch.get_num_threads())
    if facts["torch"] != torch.__version__:
        reporter.note(
            f"Begun with torch {facts['torch']}, going on with {torch.__version__}: the result may differ in its last digits."
        )
    torch.set_num_threads(int(facts["threads"]))
    date = facts["date"] and datetime.fromisoformat(str(facts["date"]))
    result = train_network(asked, folder.path, date, reporter)
    validations = {str(step): loss for step, loss in result.validations.items()}
    told = {"step": result.step, "validation": validations}
    told["message"] = result.message
    return result.ending, {**told, "file": result.file and str(result.file)}


KINDS: tuple[tuple[str, Work], ...] = (("train", train),)


def run_facts(folder: RunFolder, torch_version: str, threads: int) -> dict[str, Any]:
    """Return what the first worker of a run found, and write it down if that is this one.

    date: what SOURCE_DATE_EPOCH said, for the metadata of files; created: the clock's time, which goes into no file but this.
    """
    if not folder.facts.exists():
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        date = datetime.fromtimestamp(int(epoch), timezone.utc).isoformat() if epoch else None
        facts = {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "date": date,
            "torch": torch_version,
            "threads": threads,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        write_json(folder.facts, facts)
    return json.loads(folder.facts.read_text("utf-8"))


def main(arguments: Sequence[str]) -> int:
    """Do the work of a run folder and return 0, or 1 when it failed; the last event tells which."""
    os.environ.update(OFFLINE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    folder = RunFolder(Path(arguments[0]).absolute())
    me = take(folder.path, "worker", "the worker")
    if not me.is_me:
        log.error("Another worker (process %d) is at this run.", me.pid)
        return 1
    remove_partial(folder.path)
    events = _say_hello(folder, me)
    reporter = Reporter(folder, events)
    over = threading.Event()
    beats = threading.Thread(target=_beat, args=(events, over), daemon=True)
    beats.start()
    try:
        ending, told = _work(folder, reporter)
    except Exception as error:
        log.exception("The work failed.")
        ending, told = "failed", {"message": _sentence(error)}
    over.set()
    beats.join()
    reporter.answer_all(f"Too late: the run is {ending}.")
    # When the ending is told the next worker may come, though this process takes a while to end.
    release(folder.path, "worker")
    events.write(ending, told)
    events.close(LAST_WORD_SECONDS)
    return 1 if ending == "failed" else 0


def _say_hello(folder: RunFolder, me: Owner) -> EventLog:
    begun = any(event.kind == "hello" for event in read_events(folder.events))
    events = EventLog(folder.events)
    events.write("hello", {"pid": me.pid, "started": me.started})
    if begun:
        events.write("resumed")
    return events


def _work(folder: RunFolder, reporter: Reporter) -> tuple[str, dict[str, object]]:
    try:
        asked = json.loads(folder.config.read_text("utf-8"))
        kind, config = asked["kind"], asked["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{folder.config} cannot be read: {error!r}") from None
    kinds = dict(KINDS)
    if kind not in kinds:
        raise FileFormatError(f"There is no work of kind {kind!r}. {did_you_mean(kind, kinds)}")
    return kinds[kind](config, folder, reporter)


def _beat(events: EventLog, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        events.write("beat")


def _sentence(error: Exception) -> str:
    """Say in a sentence what went wrong; the log has the rest."""
    if isinstance(error, LoraError):
        return str(error)
    told = isinstance(error, RuntimeError | OSError) and NO_MEMORY.search(str(error))
    if told or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "The memory ran out: lower the batch or the size, or close other programs."
    if isinstance(error, OSError):
        return f"The system refused: {error}."
    return f"Something unforeseen went wrong ({type(error).__name__}: {error}); log.txt has the details."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
