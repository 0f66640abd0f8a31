"""The memory of a process and everything it started, without counting shared pages twice."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil


def tree_bytes() -> int:
    """Return the proportional set size (PSS) of this process and its descendants; where there is none, the unique one."""
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            memory = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(memory, "pss", memory.uss)
    return total


class PeakMemory:
    """Samples `tree_bytes` on a thread between `with` and its end; `bytes` is the largest value seen."""

    def __init__(self, every_seconds: float = 0.5) -> None:
        self.bytes = 0
        self._every = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, tree_bytes())
            if self._ended.wait(self._every):
                return
