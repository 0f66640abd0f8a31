"""What a run's events tell: where it stands, and the events themselves, read on from where the last reading ended."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lib_lora.jobs.protocol import Event, EventReader, parse_events

Status = Literal["queued", "starting", "running", "paused", "stopped", "failed", "done", "dead"]
ENDINGS: Mapping[str, Status] = {
    "paused": "paused",
    "stopped": "stopped",
    "failed": "failed",
    "done": "done",
}
MARK_EVERY = 200
# As our own writer puts it; quotes within a text have a backslash before them.
_REPEATED = (b'"kind": "step"', b'"kind": "beat"')
_OF_A_STEP = ("step", "total", "loss", "rate", "seconds_left")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands, as its events tell.

    step, total: of the stage; loss, rate, seconds_left: of the last step; message: the sentence of an ending; result: what the last
    ending told; notes: sentences for the person; pid, started: the worker's process and when it began; launcher: the same of the
    process that is starting a worker; queued: when it was put in the queue again; beat: the last sign of life; silent_since: the same
    when it is long ago though the process lives; seq: the number of the last event.
    """

    status: Status = "queued"
    stage: str = ""
    step: int = 0
    total: int = 0
    loss: float | None = None
    rate: float | None = None
    seconds_left: float | None = None
    message: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pid: int | None = None
    started: str | None = None
    launcher: tuple[int, str] | None = None
    queued: float | None = None
    beat: float | None = None
    silent_since: float | None = None
    seq: int = 0

    @property
    def at_work(self) -> bool:
        """Tell whether a worker is at it or about to be."""
        return self.status in ("starting", "running")

    @property
    def over(self) -> bool:
        """Tell whether no worker is at it or will be without being asked."""
        return not self.at_work and self.status != "queued"


def derive_state(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state that events tell, in their order, after an earlier one; kinds that are not known change nothing."""
    state = state or RunState()
    told: dict[str, Any] = {}
    notes = list(state.notes)
    for event in events:
        told.update(_told_by(event), seq=event.seq, beat=event.t)
        if event.kind == "note":
            notes.append(str(event.data.get("text", "")))
    return replace(state, **told, notes=tuple(notes)) if told else state


def _told_by(event: Event) -> dict[str, Any]:
    data = event.data
    if event.kind == "step":
        return {key: data[key] for key in _OF_A_STEP if key in data}
    if event.kind == "stage":
        stage = {"stage": data.get("name", ""), "step": data.get("step", 0)}
        return {"status": "running", **stage, "total": data.get("total", 0)}
    if event.kind == "queued":
        return {"status": "queued", "queued": event.t}
    if event.kind == "starting":
        launcher = (data.get("pid", 0), data.get("started", ""))
        return {**_BEGINNING, "launcher": launcher, "pid": None, "started": None}
    if event.kind == "hello":
        return {**_BEGINNING, "pid": data.get("pid"), "started": data.get("started")}
    if event.kind in ENDINGS:
        ending = {"status": ENDINGS[event.kind], "message": str(data.get("message", ""))}
        return {**ending, "result": data, "seconds_left": None}
    return {}


_BEGINNING: Mapping[str, Any] = {
    "status": "starting",
    "stage": "",
    "message": "",
    "result": {},
    "seconds_left": None,
}


class Story:
    """A run's events as they come; whoever asks again pays for what is new alone. Threads may share it."""

    def __init__(self, file: Path) -> None:
        self._file, self._reader = file, EventReader(file)
        self._lock = threading.Lock()
        self._state = RunState()
        # Number of an event, and where the one after it begins.
        self._marks = [(0, 0)]
        self._unmarked = 0

    def state(self) -> RunState:
        """Return the state that the events tell."""
        with self._lock:
            offset, lines = self._reader.offset, self._reader.lines()
            self._state = derive_state(parse_events(_telling(lines)), self._state)
            for line in lines:
                offset += len(line)
                self._unmarked += 1
                if self._unmarked >= MARK_EVERY:
                    self._mark(line, offset)
            return self._state

    def events(self, after: int = 0, most: int | None = None) -> list[Event]:
        """Return the events whose number is above `after`, the first `most` of them."""
        if self.state().seq <= after:
            return []
        with self._lock:
            _, offset = self._marks[bisect_right(self._marks, (after, math.inf)) - 1]
        found = parse_events(EventReader(self._file, offset).lines())
        return list(islice((event for event in found if event.seq > after), most))

    def _mark(self, line: bytes, offset: int) -> None:
        for event in parse_events([line]):
            self._marks.append((event.seq, offset))
            self._unmarked = 0


def _telling(lines: Sequence[bytes]) -> list[bytes]:
    """Leave out steps and beats but the last of each: most lines are such, and the next one tells all of it anew."""
    last: dict[object, int] = {}
    for place, line in enumerate(lines):
        last[next((kind for kind in _REPEATED if kind in line), place)] = place
    return [lines[place] for place in sorted(last.values())]
