"""The progress of a run in a terminal: one line rewritten in place, or now and then a whole line where there is no terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from typing import TextIO

from lib_lora.errors import UsageError
from lib_lora.jobs.client import Run
from lib_lora.jobs.protocol import Event
from lib_lora.jobs.story import RunState, derive_state

BAR_WIDTH = 24
REFRESH_SECONDS, PLAIN_SECONDS = 0.1, 10.0


class ProgressLine:
    """A line of stage, step, loss and time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._rewrites = self._stream.isatty()
        self._shown = ""
        self._stage: str | None = None
        self._next = 0.0

    def show(
        self,
        stage: str,
        step: int = 0,
        total: int = 0,
        loss: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Show where the work stands; calls that come too fast are passed over, a new stage and its last step never."""
        now = time.monotonic()
        if stage == self._stage and step < total and now < self._next:
            return
        self._stage = stage
        self._next = now + (REFRESH_SECONDS if self._rewrites else PLAIN_SECONDS)
        self._put(progress_text(stage, step, total, loss, seconds_left))

    def tell(self, sentence: str) -> None:
        """Write a line of its own."""
        shown, self._shown = self._shown, ""
        if self._rewrites and shown:
            self._stream.write("\r" + " " * len(shown) + "\r")
        self._stream.write(f"{sentence}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the line as it is and go to the next one."""
        if self._rewrites and self._shown:
            self._stream.write("\n")
            self._stream.flush()
        self._shown = ""

    def _put(self, text: str) -> None:
        if not self._rewrites:
            self._stream.write(f"{text}\n")
        else:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(len(self._shown)))
            self._shown = text
        self._stream.flush()


def progress_text(
    stage: str, step: int, total: int, loss: float | None, seconds_left: float | None
) -> str:
    """Return "stage [====    ] step/total  loss L  m:ss left", without what is not known."""
    parts = [f"{stage:<10}"]
    if total:
        filled = BAR_WIDTH * min(step, total) // total
        parts.append(f"[{'=' * filled}{' ' * (BAR_WIDTH - filled)}] {step}/{total}")
    if loss is not None:
        parts.append(f" loss {loss:.4f}")
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        parts.append(f" {minutes}:{seconds:02d} left")
    return " ".join(parts)


def follow_run(run: Run, line: ProgressLine, after: int = 0) -> RunState:
    """Show a run until it is over and return its state; the first Ctrl-C asks the worker to stop, a second one leaves it alone.

    after: the number of the last event that is not to be shown again.
    """
    state, asked = RunState(seq=after), False
    while True:
        try:
            for event in run.follow(state.seq):
                state = derive_state([event], state)
                _show(event, state, line)
            line.close()
            return run.state()
        except KeyboardInterrupt:
            if asked:
                raise
            asked = True
            line.tell("Stopping after this step; what was learned so far is saved.")
            with contextlib.suppress(UsageError):
                run.command("stop")


def _show(event: Event, state: RunState, line: ProgressLine) -> None:
    if event.kind == "note":
        line.tell(state.notes[-1])
    elif event.kind == "stage":
        line.show(state.stage, state.step, state.total)
    elif event.kind == "step":
        line.show(state.stage, state.step, state.total, state.loss, state.seconds_left)
