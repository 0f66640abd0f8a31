"""The worker's environment as the page sees it: whether it is there, and making it while others look on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from lib_lora.errors import LoraError, UsageError

log = logging.getLogger(__name__)

SHOWN_LINES = 200
Tell = Callable[[str], None]


class Preparation:
    """lacking: says what training lacks, None when it is nothing; prepare: installs it, telling each step. Threads may share it.

    Both take an optional package that the training which was asked for last needs besides, "" for none.
    """

    def __init__(
        self,
        lacking: Callable[[str], str | None],
        prepare: Callable[[Tell, str], None],
        allowed: bool,
    ) -> None:
        self._lacking, self._prepare, self._allowed = lacking, prepare, allowed
        self._lock = threading.Lock()
        self._extra = ""
        self._sentence: str | None = None
        self._known = False
        self._busy = False
        self._lines: list[str] = []

    def view(self) -> dict[str, Any]:
        """Return what the page shows. What is lacking is looked up once, and again after each preparation."""
        with self._lock:
            if not self._known:
                self._sentence, self._known = self._lacking(self._extra), True
            sentence = self._sentence or ""
            if sentence and not self._allowed:
                sentence = f"{sentence} This server lets nobody install over the network: prepare it on its own machine."
            return {
                "ready": not sentence and not self._busy,
                "busy": self._busy,
                "sentence": sentence,
                "lines": self._lines[-SHOWN_LINES:],
                "allowed": self._allowed and bool(sentence),
            }

    def check(self, extra: str = "") -> None:
        """Raise UsageError when no worker could begin, with an optional package."""
        with self._lock:
            if extra != self._extra and not self._busy:
                self._extra, self._known = extra, False
        view = self.view()
        if not view["ready"]:
            raise UsageError(view["sentence"] or "The worker's environment is being prepared.")

    def begin(self) -> None:
        """Start preparing in a thread of its own; raises UsageError when that is not allowed here or going on already."""
        if not self._allowed:
            raise UsageError("This server lets nobody install anything over the network.")
        with self._lock:
            if self._busy:
                raise UsageError("It is being prepared already.")
            self._busy, self._lines = True, []
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def _run(self) -> None:
        problem = None
        try:
            self._prepare(self._lines.append, self._extra)
        except LoraError as error:
            problem = str(error)
        except Exception:
            log.exception("The worker's environment could not be prepared.")
            problem = "Something unforeseen went wrong; the server's log has the details."
        with self._lock:
            self._busy, self._known = False, problem is not None
            self._sentence = problem
