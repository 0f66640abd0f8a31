"""The thread behind the pages: starts what waits, lends the host's GPU to it meanwhile, and hands over what is finished.

It needs nobody to look on, and what it has to remember lies in the runs' folders: a new process goes on where one ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lib_lora.errors import LoraError

if TYPE_CHECKING:
    from lib_lora.host import Host
    from lib_lora.jobs.client import Run
    from lib_lora.jobs.queue import Queue
    from lib_lora.jobs.story import RunState

log = logging.getLogger(__name__)

SECONDS = 1.0
UNDELIVERED = "undelivered"
DELIVERED_WHEN = ("done", "stopped")


def will_be_delivered(run: Run) -> None:
    """Note that what a run makes is to be made known to the host; the note holds what of it is known already."""
    (run.folder / UNDELIVERED).touch()


class Attendant:
    """between: returns the host whose GPU is lent and the queue, asked once and when there is time for it.

    The queue is for the attendant alone, since starting a worker takes a while.
    """

    def __init__(self, between: Callable[[], tuple[Host, Queue]]) -> None:
        self._between = cache(between)
        # A GPU that the host lent before this began is given back like any other.
        self._lent: bool | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="attendant", daemon=True)

    def start(self) -> None:
        """Begin to attend; the thread ends with the process or with `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop attending; runs go on, and a GPU that is lent stays lent."""
        self._over.set()

    def attend(self) -> None:
        """Do once what there is to do. Raises LoraError and OSError."""
        host, queue = self._between()
        if queue.read_only:
            return
        runs = queue.runs()
        states = [run.state() for run in runs]
        working = any(not state.over for state in states)
        if working and not self._lent:
            host.release_gpu()
            self._lent = True
        if working:
            queue.pump()
        for run, state in zip(runs, states, strict=True):
            if state.status in DELIVERED_WHEN and (run.folder / UNDELIVERED).exists():
                _deliver(host, run, state)
        if self._lent is not False and not working:
            host.restore_gpu()
            self._lent = False

    def _go_on(self) -> None:
        while not self._over.wait(SECONDS):
            try:
                self.attend()
            except Exception:
                log.exception("The runs could not be looked after; trying again.")


def _deliver(host: Host, run: Run, state: RunState) -> None:
    """Make the network of a run known: the finished one, after which there is no more, or what it was when it was stopped."""
    marker, done = run.folder / UNDELIVERED, state.status == "done"
    file = str(state.result["file"]) if done else _last_saved(run)
    if file and marker.read_text("utf-8") != file:
        try:
            host.add_network(Path(file))
        except (LoraError, OSError) as error:
            host.tell(f"{Path(file).name} could not be made known: {error}")
        marker.write_text(file, "utf-8")
    if done:
        marker.unlink()


def _last_saved(run: Run) -> str:
    saved = [event.data for event in run.events() if event.kind == "saved"]
    return str(saved[-1].get("file", "")) if saved else ""
