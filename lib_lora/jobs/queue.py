"""The runs of a folder, one of them at work at a time: what is added waits on disk until the one before it is over.

One process owns the folder and starts workers; it takes the folder when it first changes something, and keeps it while it lives.
Any other sees the runs and is told who that is. A new process goes on where a dead one left off.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from lib_lora.errors import LoraError, NoSpaceError, UsageError, did_you_mean
from lib_lora.formats.place import check_space, remove
from lib_lora.jobs.client import (
    Run,
    append_event,
    check_resumable,
    create,
    launch,
    new_folder,
    run_folders,
)
from lib_lora.jobs.owner import Owner, owner_of, take
from lib_lora.jobs.protocol import COMMANDS, RunFolder

log = logging.getLogger(__name__)

QUEUE_COMMANDS = (*COMMANDS, "resume", "delete")


class Queue:
    """The runs in `root`. name: what this process tells others of itself, such as "WebUI on port 7860". Threads may share it."""

    def __init__(self, root: Path, name: str = "LoRA Loom") -> None:
        self.root, self.name = root.absolute(), name
        self._runs: dict[Path, Run] = {}
        self._lock = threading.RLock()

    def owner(self) -> Owner | None:
        """Return the living process that owns the folder; `is_me` tells whether it is this one."""
        return owner_of(self.root, "queue")

    @property
    def read_only(self) -> bool:
        """Tell whether another living process owns the folder."""
        owner = self.owner()
        return owner is not None and not owner.is_me

    def runs(self) -> list[Run]:
        """List the runs, the newest first; the same objects each time, so that asking them often is cheap."""
        with self._lock:
            self._runs = {
                folder: self._runs.get(folder) or Run(folder) for folder in run_folders(self.root)
            }
            return list(self._runs.values())

    def find(self, name: str) -> Run:
        """Return a run by its name; raises UsageError when there is none of it."""
        known = {run.id: run for run in self.runs()}
        if name not in known:
            raise UsageError(f"There is no run {name!r} in {self.root}. {_nearest(name, known)}")
        return known[name]

    def add(self, kind: str, config: Mapping[str, object]) -> Run:
        """Put a new run at the end of the queue; raises UsageError when another process owns the folder."""
        with self._lock:
            self._take()
            run = create(kind, config, new_folder(self.root, kind))
            self._runs[run.folder] = run
            return run

    def pump(self) -> Run | None:
        """Start the run that waits longest, unless one is at work or another process owns the folder, and return it.

        A run whose worker does not start is failed and says so in its message.
        """
        with self._lock:
            if self.read_only:
                return None
            states = {run: run.state() for run in reversed(self.runs())}
            waiting = [run for run, state in states.items() if state.status == "queued"]
            if not waiting or any(state.at_work for state in states.values()):
                return None
            self._take()
            # Fresh runs stand in the order in which they were made, and one that was queued again came after them all.
            first = min(waiting, key=lambda run: states[run].queued or run.made)
            self._start(first)
            return first

    def command(self, run: Run, name: str) -> str:
        """Ask something of a run and return the command's id, or "" when it is done at once.

        pause, stop: also of a run that is still queued; resume: puts it in the queue again; delete: removes its folder, not what it
        made elsewhere. Raises UsageError when the run is not in a state for it, or another process owns the folder.
        """
        if name not in QUEUE_COMMANDS:
            raise UsageError(f"There is no command {name!r}. {did_you_mean(name, QUEUE_COMMANDS)}")
        with self._lock:
            self._take()
            if name == "resume":
                check_resumable(run)
                if run.state().status != "queued":
                    append_event(run, "queued")
            elif name == "delete":
                self._delete(run)
            elif run.state().status == "queued" and name != "save":
                step = run.state().result.get("step", 0)
                append_event(run, {"pause": "paused", "stop": "stopped"}[name], {"step": step})
            else:
                return run.command(name)
            return ""

    def _start(self, run: Run) -> None:
        try:
            check_space(self.root, 0)
        except NoSpaceError as error:
            append_event(run, "failed", {"message": str(error)})
            return
        try:
            launch(run)
        except LoraError as error:
            log.warning("%s: %s", run.id, error)

    def _take(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        owner = take(self.root, "queue", self.name)
        if not owner.is_me:
            raise UsageError(
                f"The runs in {self.root} belong to {owner.name} (process {owner.pid}); ask there, or end it first."
            )

    def _delete(self, run: Run) -> None:
        state = run.state()
        if state.at_work:
            raise UsageError(f"{run.id} is {state.status}: stop it before it is deleted.")
        # Without this file it is no run any more, whatever else somebody still holds open.
        remove(RunFolder(run.folder).config)
        shutil.rmtree(run.folder, ignore_errors=True)


def _nearest(name: str, known: Mapping[str, Run]) -> str:
    return did_you_mean(name, known) if known else "It holds none."
