"""The other end of a run: start a worker, follow its events, ask things of it, notice that it died.

A worker is a process of its own that outlives whoever started it; the run's folder is all that both sides share.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lib_lora.errors import LoraError, UsageError, did_you_mean
from lib_lora.formats.place import remove
from lib_lora.jobs.environment import worker_environment
from lib_lora.jobs.owner import is_running, this_process
from lib_lora.jobs.protocol import (
    BEAT_SECONDS,
    COMMANDS,
    Event,
    EventLog,
    EventReader,
    RunFolder,
    pending_commands,
    send_command,
    write_json,
)
from lib_lora.jobs.story import RunState, Story, derive_state

POLL_SECONDS = 0.2
START_SECONDS = 120.0
# A launcher that was killed may have started a worker whose first word is still to come.
ORPHAN_SECONDS = 20.0
SILENT_BEATS = 6
LOG_TAIL_LINES = 8
LOG_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """A run, by its folder. Keep it to ask often: it remembers how far the events were read."""

    folder: Path
    _story: Story = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_story", Story(RunFolder(self.folder).events))

    @property
    def id(self) -> str:
        """Return the name of the run in its root."""
        return self.folder.name

    @property
    def made(self) -> float:
        """Return when the run was made, in seconds since 1970."""
        try:
            return RunFolder(self.folder).config.stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def asked(self) -> dict[str, Any]:
        """Return {"kind": what the worker is to do, "config": with what}, both empty when that cannot be read."""
        try:
            raw = json.loads(RunFolder(self.folder).config.read_text("utf-8"))
            return {"kind": str(raw["kind"]), "config": {**raw["config"]}}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {"kind": "", "config": {}}

    def events(self, after: int = 0, most: int | None = None) -> list[Event]:
        """Return the events whose number is above `after`, the first `most` of them."""
        return self._story.events(after, most)

    def state(self) -> RunState:
        """Return where the run stands; a worker that is gone without an ending makes it "dead", with the end of its log."""
        state = self._story.state()
        if state.at_work and not is_alive(state):
            # Its last words may have come between the reading and the asking.
            state = self._story.state()
            if state.at_work and not is_alive(state):
                return self._dead(state)
        if state.at_work and state.beat and time.time() > state.beat + SILENT_BEATS * BEAT_SECONDS:
            return replace(state, silent_since=state.beat)
        return state

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Yield the events above `after` as they come, until the run is over or its worker gone."""
        reader = EventReader(RunFolder(self.folder).events)
        state = RunState()
        while True:
            waits = state.status == "queued" or is_alive(state)
            new = reader.read()
            state = derive_state(new, state)
            yield from (event for event in new if event.seq > after)
            if not new:
                if state.over or not waits:
                    return
                time.sleep(POLL_SECONDS)

    def command(self, name: str) -> str:
        """Ask "stop", "pause" or "save" of the worker and return the command's id; raises UsageError when nobody would hear it."""
        if name not in COMMANDS:
            raise UsageError(f"There is no command {name!r}. {did_you_mean(name, COMMANDS)}")
        state = self.state()
        if not state.at_work:
            raise UsageError(f"{self.id} is {state.status}: there is nothing to {name}.")
        return send_command(RunFolder(self.folder), name)

    def wait(self, seconds: float | None = None) -> RunState:
        """Wait until the run is over, at most so many seconds, and return its state."""
        end = None if seconds is None else time.monotonic() + seconds
        while not (state := self.state()).over:
            if end is not None and time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        return state

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of the log."""
        try:
            with RunFolder(self.folder).log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _dead(self, state: RunState) -> RunState:
        end = (
            "has not begun"
            if state.pid is None
            else f"(process {state.pid}) is gone without a word"
        )
        log = self.log_tail()
        said = f"Its log ends:\n{log}" if log else "Its log is empty."
        message = f"The worker of {self.id} {end}; the run can be resumed. {said}"
        return replace(state, status="dead", message=message, seconds_left=None)


def is_alive(state: RunState) -> bool:
    """Tell whether the process that last said hello has not ended, or else the one that is starting it."""
    if state.pid is not None and state.started is not None:
        return is_running(state.pid, state.started)
    if state.launcher is None or state.beat is None:
        return False
    # A clock that was set back would else keep it waiting for as long.
    waited = abs(time.time() - state.beat)
    return waited < (START_SECONDS if is_running(*state.launcher) else ORPHAN_SECONDS)


def create(kind: str, config: Mapping[str, object], folder: Path) -> Run:
    """Make a run in a new or empty folder; it is queued until a worker is launched on it.

    kind: what the worker is to do, such as "train"; config: plain JSON values with absolute paths. Raises UsageError when the folder
    holds a run already.
    """
    paths = RunFolder(folder.absolute())
    paths.commands.mkdir(parents=True, exist_ok=True)
    try:
        write_json(paths.config, {"kind": kind, "config": dict(config)})
    except FileExistsError:
        raise UsageError(
            f"{folder} holds a run already; resume it or choose another folder."
        ) from None
    return Run(paths.path)


def start(kind: str, config: Mapping[str, object], folder: Path) -> Run:
    """Make a run as `create` does and launch its worker; raises LoraError when that does not start."""
    run = create(kind, config, folder)
    launch(run)
    return run


def resume(folder: Path) -> Run:
    """Launch a new worker on a run that was paused, stopped, failed or left by a dead worker; raises UsageError for any other."""
    run = Run(folder.absolute())
    check_resumable(run)
    launch(run)
    return run


def check_resumable(run: Run) -> None:
    """Raise UsageError unless a new worker can go on with a run."""
    if not RunFolder(run.folder).config.is_file():
        raise UsageError(f"{run.folder} holds no run.")
    state = run.state()
    if state.at_work or state.status == "done":
        raise UsageError(f"{run.id} is {state.status}: there is nothing to resume.")


def launch(run: Run) -> None:
    """Start a worker on a run that has none, and return when it has said hello; raises LoraError when it does not."""
    paths = RunFolder(run.folder)
    before, process = _announce(paths), None
    try:
        process = _start_worker(paths)
        # Somebody has to take note of its end, or it stays behind as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        _await_hello(run, process, before)
    except BaseException as error:
        # A start that is given up, by its time or by Ctrl-C, leaves no worker that nobody follows.
        if process is not None:
            process.kill()
            process.wait()
        append_event(run, "failed", {"message": str(error) or "The start was given up."})
        raise


def _start_worker(paths: RunFolder) -> subprocess.Popen[bytes]:
    try:
        with paths.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "lib_lora.jobs.worker", str(paths.path)],
                cwd=paths.path,
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_detached(),
            )
    except OSError as error:
        raise LoraError(f"The worker could not be started: {error}.") from error


def new_folder(root: Path, kind: str) -> Path:
    """Make an empty folder for a run, named by the time and what it does."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{kind}"
    for number in range(1, 1000):
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise LoraError(f"{root} has a thousand runs of this second.")


def run_folders(root: Path) -> list[Path]:
    """List the runs in `root`, the one that was made last first."""
    made = {
        file.parent: (file.stat().st_mtime_ns, file.parent.name)
        for file in root.glob("*/config.json")
    }
    return sorted(made, key=lambda folder: made[folder], reverse=True)


def latest(root: Path) -> Path:
    """Return the run in `root` that was made last; raises UsageError when there is none."""
    folders = run_folders(root)
    if not folders:
        raise UsageError(f"{root.absolute()} holds no run.")
    return folders[0]


def _announce(paths: RunFolder) -> int:
    """Say that a worker will be started, answer what was asked of the one before, and return the number of the last event."""
    me = this_process("")
    events = EventLog(paths.events)
    for command in pending_commands(paths):
        result = "Too late: it was meant for an earlier worker."
        events.write("command", {"id": command.id, "command": command.name, "result": result})
        remove(paths.commands / f"{command.id}.json")
    events.write("starting", {"pid": me.pid, "started": me.started})
    events.close()
    return events.seq


def append_event(run: Run, kind: str, data: Mapping[str, object] | None = None) -> None:
    """Add an event to a run that has no worker; who owns the queue may, and who was starting a worker."""
    events = EventLog(RunFolder(run.folder).events)
    events.write(kind, data)
    events.close()


def _await_hello(run: Run, process: subprocess.Popen[bytes], before: int) -> None:
    end = time.monotonic() + START_SECONDS
    while not any(event.kind == "hello" for event in run.events(before)):
        if process.poll() is not None or time.monotonic() > end:
            raise LoraError(f"The worker did not start. Its log ends:\n{run.log_tail()}")
        time.sleep(0.02)


def _detached() -> dict[str, Any]:
    """Return what makes a process outlive its parent's terminal and not hear its Ctrl-C."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
