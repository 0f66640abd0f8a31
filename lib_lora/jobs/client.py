"""The other end of a run: start a worker, follow its events, ask things of it, notice that it died.

A worker is a process of its own that outlives whoever started it; the run's folder is all that both sides share.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from lib_lora.errors import LoraError, UsageError, did_you_mean
from lib_lora.jobs.protocol import (
    COMMANDS,
    Event,
    EventReader,
    RunFolder,
    RunState,
    derive_state,
    read_events,
    send_command,
    write_json,
)

POLL_SECONDS = 0.2
START_SECONDS = 120.0
SAME_START_SECONDS = 2.0
LOG_TAIL_LINES = 8
PACKAGE_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Run:
    """A run, by its folder."""

    folder: Path

    def events(self, after: int = 0) -> list[Event]:
        """Return the events whose number is above `after`."""
        return [event for event in read_events(RunFolder(self.folder).events) if event.seq > after]

    def state(self) -> RunState:
        """Return where the run stands; a worker that is gone without an ending makes it "dead", with the end of its log."""
        state = derive_state(self.events())
        if state.over or is_alive(state):
            return state
        # Its last words may have come between the reading and the asking.
        state = derive_state(self.events())
        return state if state.over else self._dead(state)

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Yield the events above `after` as they come, until the run is over or its worker gone."""
        reader = EventReader(RunFolder(self.folder).events)
        state = RunState()
        while True:
            alive = is_alive(state)
            new = reader.read()
            state = derive_state(new, state)
            yield from (event for event in new if event.seq > after)
            if not new:
                if state.over or not alive:
                    return
                time.sleep(POLL_SECONDS)

    def command(self, name: str) -> str:
        """Ask "stop", "pause" or "save" of the worker and return the command's id; raises UsageError when nobody would hear it."""
        if name not in COMMANDS:
            raise UsageError(f"There is no command {name!r}. {did_you_mean(name, COMMANDS)}")
        state = self.state()
        if state.over:
            raise UsageError(f"{self.folder.name} is {state.status}: there is nothing to {name}.")
        return send_command(RunFolder(self.folder), name)

    def wait(self, seconds: float | None = None) -> RunState:
        """Wait until the run is over, at most so many seconds, and return its state."""
        end = None if seconds is None else time.monotonic() + seconds
        while not (state := self.state()).over:
            if end is not None and time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        return state

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        file = RunFolder(self.folder).log
        text = file.read_text("utf-8", errors="replace") if file.exists() else ""
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def _dead(self, state: RunState) -> RunState:
        end = (
            "has not begun"
            if state.pid is None
            else f"(process {state.pid}) is gone without a word"
        )
        log = self.log_tail()
        said = f"Its log ends:\n{log}" if log else "Its log is empty."
        message = f"The worker of {self.folder.name} {end}; the run can be resumed. {said}"
        return replace(state, status="dead", message=message, seconds_left=None)


def start(kind: str, config: Mapping[str, object], folder: Path) -> Run:
    """Make a run in a new or empty folder, start its worker and return when that has said hello.

    kind: what the worker is to do, such as "train"; config: plain JSON values with absolute paths. Raises UsageError when the folder
    holds a run already and LoraError when the worker does not start.
    """
    paths = RunFolder(folder.absolute())
    paths.commands.mkdir(parents=True, exist_ok=True)
    try:
        write_json(paths.config, {"kind": kind, "config": dict(config)})
    except FileExistsError:
        raise UsageError(
            f"{folder} holds a run already; resume it or choose another folder."
        ) from None
    return _launch(paths)


def resume(folder: Path) -> Run:
    """Start a new worker on a run that was paused, stopped, failed or left by a dead worker; raises UsageError for any other."""
    paths = RunFolder(folder.absolute())
    if not paths.config.is_file():
        raise UsageError(f"{folder} holds no run.")
    state = Run(paths.path).state()
    if state.status in ("running", "done"):
        raise UsageError(f"{folder.name} is {state.status}: there is nothing to resume.")
    return _launch(paths)


def new_folder(root: Path, kind: str) -> Path:
    """Make an empty folder for a run, named by the time and what it does."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{kind}"
    for number in range(1, 1000):
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise LoraError(f"{root} has a thousand runs of this second.")


def latest(root: Path) -> Path:
    """Return the run in `root` that was made last; raises UsageError when there is none."""
    runs = [folder for folder in root.glob("*") if RunFolder(folder).config.is_file()]
    if not runs:
        raise UsageError(f"{root.absolute()} holds no run.")
    return max(runs, key=lambda folder: RunFolder(folder).config.stat().st_mtime_ns)


def is_alive(state: RunState) -> bool:
    """Tell whether the process that last said hello is still the same one and has not ended."""
    if state.pid is None or state.started is None:
        return False
    try:
        process = psutil.Process(state.pid)
        same = abs(process.create_time() - state.started) < SAME_START_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _launch(paths: RunFolder) -> Run:
    run = Run(paths.path)
    before = len(run.events())
    with paths.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lib_lora.jobs.worker", str(paths.path)],
            cwd=paths.path,
            env={**os.environ, "PYTHONPATH": _python_path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_detached(),
        )
    # Somebody has to take note of its end, or it stays behind as a zombie.
    threading.Thread(target=process.wait, daemon=True).start()
    end = time.monotonic() + START_SECONDS
    said_hello = False
    try:
        while not said_hello:
            if process.poll() is not None or time.monotonic() > end:
                raise LoraError(f"The worker did not start. Its log ends:\n{run.log_tail()}")
            time.sleep(0.02)
            said_hello = len(run.events()) > before
    finally:
        # A start that is given up, by its time or by Ctrl-C, leaves no worker that nobody follows.
        if not said_hello:
            process.kill()
    return run


def _python_path() -> str:
    return os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _detached() -> dict[str, Any]:
    """Return what makes a process outlive its parent's terminal and not hear its Ctrl-C."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
