"""A run's folder: what lies in it, and how its events and commands are written and read.

    config.json    what was asked, written once: {"kind": ..., "config": {...}}
    run.json       what the first worker found: creation, torch build, threads
    events.jsonl   one flushed line per event: {"v": 1, "seq": n, "t": seconds, "kind": ...} and the event's own keys; the worker
                   writes it, and while there is none, whoever starts one or owns the queue
    commands/      one file per command, created whole under its final name and removed once it is answered
    log.txt        what the workers and their libraries said
    samples/ saves/ state/  what the work leaves

Readers skip a line that is torn and keep kinds that they do not know. A run's state is derived from its events (`story`) and stored
nowhere.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lib_lora.formats.place import FULL, new_file

VERSION = 1
BEAT_SECONDS = 5.0
TAIL_BYTES = 1 << 16
MOST_UNWRITTEN = 1 << 20

COMMANDS = ("stop", "pause", "save")


class Event(NamedTuple):
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
    def samples(self) -> Path:
        """The folder of pictures that the network in training made."""
        return self.path / "samples"

    @property
    def log(self) -> Path:
        """The file of what the workers said."""
        return self.path / "log.txt"


class EventLog:
    """The writing end of the events; threads may share it, processes may not."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._seq, torn = _last_seq(file)
        self._file = file.open("ab", buffering=0)
        self._unwritten = b"\n" if torn else b""

    @property
    def seq(self) -> int:
        """Return the number of the last event."""
        return self._seq

    def write(self, kind: str, data: Mapping[str, object] | None = None) -> None:
        """Append one event. What a full disk does not take now goes before the next one: the work matters more than its story."""
        with self._lock:
            self._seq += 1
            head = {"v": VERSION, "seq": self._seq, "t": round(time.time(), 3), "kind": kind}
            self._unwritten += json.dumps({**head, **(data or {})}).encode() + b"\n"
            self._write_on()

    def close(self, patience: float = 0.0) -> None:
        """Close the file, after trying for so many seconds to get everything into it; nothing may be written afterwards."""
        end = time.monotonic() + patience
        with self._lock:
            while self._unwritten and time.monotonic() < end:
                time.sleep(0.1)
                self._write_on()
            self._file.close()

    def _write_on(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if error.errno not in FULL or len(self._unwritten) > MOST_UNWRITTEN:
                raise


class EventReader:
    """The reading end: each call to `read` returns the events that came since."""

    def __init__(self, file: Path, offset: int = 0) -> None:
        self._path, self.offset = file, offset

    def lines(self) -> list[bytes]:
        """Return the new whole lines with their ends; one that is still being written is left for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.splitlines(keepends=True)

    def read(self) -> list[Event]:
        """Return the new events."""
        return list(parse_events(self.lines()))


def read_events(file: Path) -> list[Event]:
    """Return every event of a run so far."""
    return EventReader(file).read()


def parse_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in lines; a line that is none is passed over."""
    return (event for line in lines if (event := _parse(line)) is not None)


def _last_seq(file: Path) -> tuple[int, bool]:
    """Return the number of the last event, and whether the file ends within a line."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return 0, False
    for length in (TAIL_BYTES, size):
        with file.open("rb") as stream:
            stream.seek(max(0, size - length))
            tail = stream.read()
        # The first line of a tail may lack its beginning, and reads as no event.
        events = list(parse_events(tail.splitlines()))
        if events:
            return events[-1].seq, not tail.endswith(b"\n")
    return 0, size > 0


def _parse(line: bytes) -> Event | None:
    try:
        raw = json.loads(line.decode())
        head = (int(raw.pop("seq")), float(raw.pop("t")), str(raw.pop("kind")))
        raw.pop("v")
        return Event(*head, raw)
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        return None


def write_json(file: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file that readers see whole or not at all; raises FileExistsError when there is one already."""
    if file.exists():
        raise FileExistsError(f"{file} is there already.")
    with new_file(file) as out:
        out.write((json.dumps(value, indent=2) + "\n").encode())


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
