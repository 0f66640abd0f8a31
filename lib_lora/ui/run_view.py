"""What the page shows of a run, read from its events; whoever has seen some of them gets what came since."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lib_lora.jobs.client import Run
from lib_lora.jobs.protocol import Event, RunFolder, pending_commands
from lib_lora.jobs.story import ENDINGS, RunState

MOST_POINTS = 1500
RECENT_STEPS = 30
LOG_LINES = 200
SHOWN_NOTES = 30
Point = tuple[int, float]
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "queued": ("pause", "remove"),
    "starting": (),
    "running": ("pause", "save", "stop"),
    "paused": ("resume", "remove"),
    "stopped": ("resume", "remove"),
    "failed": ("resume", "remove"),
    "dead": ("resume", "remove"),
    "done": ("remove",),
}
STAGES = {
    "checkpoint": "Reading the checkpoint",
    "base model": "Loading the base model",
    "pictures": "Encoding the pictures",
    "captions": "Encoding the captions",
    "training": "Training",
    "sampling": "Drawing samples",
    "saving": "Saving",
}


class Watched:
    """A run that is looked at, and what its events so far come to. Threads may share it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._seq = 0
        self._last: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)
        self._pace: Mapping[str, Any] = {}
        self._step, self._spent = 0, 0.0
        self._answer, self._saved = "", ""

    def figures(self) -> dict[str, Any]:
        """Return the step that was taken last, the seconds that workers have spent, the speed, and what a worker told last."""
        with self._lock:
            for event in self.run.events(self._seq):
                self._take(event)
            per_epoch = int(self._pace.get("steps_per_epoch") or 0)
            epochs = math.ceil(self._pace.get("total", 0) / per_epoch) if per_epoch else None
            return {
                "done_steps": self._step,
                "spent": self._spent,
                "seconds_per_step": self._seconds_per_step(),
                "epoch": min(self._step // per_epoch + 1, epochs or 1) if per_epoch else None,
                "epochs": epochs,
                "pace": dict(self._pace),
                "answer": self._answer,
                "saved": self._saved,
            }

    def _take(self, event: Event) -> None:
        self._seq = event.seq
        if event.kind == "hello":
            self._last = event.t
            self._recent.clear()
        if self._last is not None:
            self._spent, self._last = self._spent + max(0.0, event.t - self._last), event.t
        if event.kind in ENDINGS:
            self._last = None
        elif event.kind == "step":
            self._step = int(event.data["step"])
            self._recent.append((event.t, self._step))
        elif event.kind == "pace":
            self._pace = event.data
        elif event.kind == "command":
            self._answer = str(event.data.get("result", ""))
        elif event.kind == "saved":
            self._saved = str(event.data.get("file", ""))

    def _seconds_per_step(self) -> float | None:
        if len(self._recent) < 2:
            return None
        (begun, first), (ended, last) = self._recent[0], self._recent[-1]
        return (ended - begun) / (last - first) if last > first else None


def list_entry(run: Run, state: RunState) -> dict[str, Any]:
    """Return a run's line in the list of runs."""
    return {
        "id": run.id,
        "name": run_name(run.asked()),
        "when": _when(run),
        "status": state.status,
        "active": not state.over,
        "training": state.at_work and state.stage == "training",
        "step": state.step,
        "total": state.total,
    }


def run_view(watched: Watched, state: RunState, after: int, read_only: bool) -> dict[str, Any]:
    """Return a run's whole view; its points and samples are those of the events numbered above `after`, all when that is 0."""
    run = watched.run
    events = run.events(after)
    asked = run.asked()
    config: Mapping[str, Any] = asked["config"]
    steps = int(config.get("schedule", {}).get("steps", 0))
    points, figures = _points(events, "step"), watched.figures()
    return {
        **list_entry(run, state),
        "seq": events[-1].seq if events else after,
        "fresh": after == 0,
        "stage": _stage(state),
        "steps": steps,
        "left": state.seconds_left if state.at_work else None,
        "message": state.message,
        "notes": [*state.notes[-SHOWN_NOTES:]],
        "commands": [] if read_only else list(COMMANDS.get(state.status, ())),
        "pending": None if read_only else _pending(run),
        "points": thinned(points, MOST_POINTS) if after == 0 else points,
        "validation": _points(events, "validation"),
        "samples": [_sample(event) for event in events if event.kind == "sample"],
        "log": run.log_tail(LOG_LINES),
        "result": _result(state, config, figures["saved"]),
        **figures,
    }


def run_name(asked: Mapping[str, Any]) -> str:
    """Return what a run's LoRA is called."""
    out = str(asked["config"].get("saving", {}).get("out", ""))
    return Path(out).stem or asked["kind"]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points, each the last step and the mean loss of the neighbours it stands for."""
    each = -(-len(points) // most) or 1
    groups = (points[start : start + each] for start in range(0, len(points), each))
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def sample_file(run: Run, name: str) -> Path | None:
    """Return a sample picture of a run, never anything outside of its folder of samples."""
    folder = RunFolder(run.folder).samples.resolve()
    file = (folder / name).resolve()
    inside = file.parent == folder and file.suffix.lower() == ".png"
    return file if inside and file.is_file() else None


def _points(events: Iterable[Event], kind: str) -> list[Point]:
    """Return the losses by step; a resumed run takes its steps up again from its last state."""
    points: list[Point] = []
    for event in events:
        loss = event.data.get("loss")
        # What is no number has no place in a chart, and none in JSON.
        if event.kind != kind or not isinstance(loss, float | int) or not math.isfinite(loss):
            continue
        step = int(event.data["step"])
        while points and points[-1][0] >= step:
            points.pop()
        points.append((step, float(loss)))
    return points


def _sample(event: Event) -> dict[str, Any]:
    data = event.data
    name = Path(str(data.get("file", ""))).name
    return {"name": name, "step": data.get("step", 0), "prompt": str(data.get("prompt", ""))}


def _stage(state: RunState) -> str:
    words = STAGES.get(state.stage, state.stage.capitalize())
    if state.stage == "training" or not state.total:
        return words
    return f"{words}: {state.step} of {state.total}"


def _pending(run: Run) -> str | None:
    pending = pending_commands(RunFolder(run.folder))
    return pending[-1].name if pending else None


def _result(state: RunState, config: Mapping[str, Any], saved: str) -> dict[str, Any] | None:
    """Return the network that a run has made: the finished one, or what it was when it was stopped."""
    file = {"done": state.result.get("file"), "stopped": saved}.get(state.status)
    if not file:
        return None
    words = config.get("saving", {}).get("activation") or config.get("data", {}).get("caption")
    return {"file": str(file), "name": Path(str(file)).stem, "trigger": str(words or "")}


def _when(run: Run) -> str:
    """Return when a run was made, for people: its folder is named by the time."""
    stamp = run.id[:15]
    try:
        made = datetime.strptime(stamp, "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return ""
    return f"{made:%d %b, %H:%M}"
