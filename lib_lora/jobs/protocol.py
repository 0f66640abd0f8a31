"""A run's folder: what lies in it, how it is written and how its state is read from its events.

    config.json    what was asked, written once: {"kind": ..., "config": {...}}
    run.json       what the first worker found: creation, torch build, threads
    events.jsonl   one flushed line per event: {"v": 1, "seq": n, "t": seconds, "kind": ...} and the event's own keys
    commands/      one file per command, created whole under its final name and removed once it is answered
    log.txt        what the workers and their libraries said
    saves/ state/  what the work leaves

Readers skip a line that is torn and keep kinds that they do not know. A run's state is derived from its events and stored nowhere.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

VERSION = 1
BEAT_SECONDS = 5.0

Status = Literal["waiting", "running", "paused", "stopped", "failed", "done", "dead"]
COMMANDS = ("stop", "pause", "save")
ENDINGS: Mapping[str, Status] = {
    "paused": "paused",
    "stopped": "stopped",
    "failed": "failed",
    "done": "done",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a run's events; `data` holds the keys of its kind."""

    seq: int
    t: float
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """Something asked of a running worker; answered by an event with its id."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands, as its events tell.

    step, total: of the stage; loss, rate, seconds_left: of the last step; message: the sentence of a failure; result: what the last
    ending told; notes: sentences for the person; pid, started: the worker's process and when it started; beat: its last sign of life.
    """

    status: Status = "waiting"
    stage: str = ""
    step: int = 0
    total: int = 0
    loss: float | None = None
    rate: float | None = None
    seconds_left: float | None = None
    message: str = ""
    result: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pid: int | None = None
    started: float | None = None
    beat: float | None = None
    seq: int = 0

    @property
    def over(self) -> bool:
        """Tell whether no worker is at it or will be without being asked."""
        return self.status not in ("waiting", "running")


def derive_state(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state that events tell, in their order, after an earlier one; kinds that are not known change nothing."""
    state = state or RunState()
    for event in events:
        state = replace(_after(state, event), seq=event.seq, beat=event.t)
    return state


def _after(state: RunState, event: Event) -> RunState:
    data = event.data
    if event.kind == "hello":
        alive = replace(state, status="running", message="", result={})
        return replace(alive, pid=data.get("pid"), started=data.get("started"))
    if event.kind == "stage":
        return replace(
            state, stage=data.get("name", ""), step=data.get("step", 0), total=data.get("total", 0)
        )
    if event.kind == "step":
        known = {k: data[k] for k in ("step", "total", "loss", "rate", "seconds_left") if k in data}
        return replace(state, **known)
    if event.kind == "note":
        return replace(state, notes=(*state.notes, str(data.get("text", ""))))
    if event.kind in ENDINGS:
        message = str(data.get("message", ""))
        return replace(
            state, status=ENDINGS[event.kind], message=message, result=data, seconds_left=None
        )
    return state


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The file of what was asked."""
        return self.path / "config.json"

    @property
    def facts(self) -> Path:
        """The file of what the first worker found."""
        return self.path / "run.json"

    @property
    def events(self) -> Path:
        """The file of events."""
        return self.path / "events.jsonl"

    @property
    def commands(self) -> Path:
        """The folder of commands that are not answered yet."""
        return self.path / "commands"

    @property
    def log(self) -> Path:
        """The file of what the workers said."""
        return self.path / "log.txt"


class EventLog:
    """The worker's end of the events; threads may share it."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        events = read_events(file)
        self._seq = events[-1].seq if events else 0
        torn = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
        self._file = file.open("a", encoding="utf-8", newline="\n")
        if torn:
            self._file.write("\n")

    def write(self, kind: str, data: Mapping[str, object] | None = None) -> None:
        """Append one event, on disk before this returns."""
        with self._lock:
            self._seq += 1
            head = {"v": VERSION, "seq": self._seq, "t": round(time.time(), 3), "kind": kind}
            self._file.write(json.dumps({**head, **(data or {})}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; nothing may be written afterwards."""
        with self._lock:
            self._file.close()


class EventReader:
    """The readers' end: each call to `read` returns the events that came since."""

    def __init__(self, file: Path) -> None:
        self._path, self._offset = file, 0

    def read(self) -> list[Event]:
        """Return the new whole lines as events; a line still being written is left for the next time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (_parse(line) for line in whole.splitlines())
        return [event for event in found if event is not None]


def read_events(file: Path) -> list[Event]:
    """Return every event of a run so far."""
    return EventReader(file).read()


def _parse(line: bytes) -> Event | None:
    try:
        raw = json.loads(line)
        head = (raw.pop("seq"), raw.pop("t"), raw.pop("kind"))
        raw.pop("v")
        return Event(*head, raw)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def write_json(file: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file that readers see whole or not at all; raises FileExistsError when there is one already."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    with partial.open("x", encoding="utf-8", newline="\n") as out:
        out.write(json.dumps(value, indent=2) + "\n")
        out.flush()
        os.fsync(out.fileno())
    if file.exists():
        partial.unlink()
        raise FileExistsError(f"{file} is there already.")
    partial.rename(file)


def send_command(folder: RunFolder, name: str) -> str:
    """Ask something of a run's worker and return the command's id; ids sort by time."""
    id_ = f"{time.time_ns():020d}-{secrets.token_hex(3)}"
    folder.commands.mkdir(exist_ok=True)
    write_json(folder.commands / f"{id_}.json", {"command": name})
    return id_


def pending_commands(folder: RunFolder) -> list[Command]:
    """Return the commands that are not answered yet, oldest first; a file that is no command has an empty name."""
    files = sorted(folder.commands.glob("*.json"))
    return [Command(file.stem, _command_name(file)) for file in files]


def _command_name(file: Path) -> str:
    try:
        return str(json.loads(file.read_text("utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
