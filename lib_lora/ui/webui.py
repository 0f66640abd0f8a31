"""The Train page inside of a WebUI: its tab, its routes, and the thread that looks after the runs.

The WebUI's start waits for an empty page and the names of the routes alone; what stands behind them is imported and opened by the first
question of a page, or by the thread, whichever comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from lib_lora.ui.attendant import Attendant
from lib_lora.ui.routes import add_train_routes
from lib_lora.ui.train_page import page_token, train_place

if TYPE_CHECKING:
    from lib_lora.host import Host
    from lib_lora.jobs.queue import Queue
    from lib_lora.ui.train_service import TrainService

TITLE, ELEMENT = "LoRA Loom", "lora_loom"


class WebuiPages:
    """open_host: returns the WebUI of this process; runs: the folder of runs, which `loom.py jobs` finds too when it is in the extension's."""

    def __init__(self, open_host: Callable[[], Host], runs: Path) -> None:
        self._open_host, self._runs = open_host, runs
        self._token = page_token(runs)
        self._lock = threading.Lock()
        self._service: TrainService | None = None
        self._attendant = Attendant(self._host_and_queue)

    def tabs(self) -> list[tuple[Any, str, str]]:
        """Return the tab as the WebUI's `on_ui_tabs` wants it."""
        return [(train_place(self._token), TITLE, ELEMENT)]

    def start(self, app: FastAPI) -> None:
        """Add the routes to the WebUI's application and begin to look after the runs."""
        add_train_routes(app, self._behind, self._token)
        self._attendant.start()

    def close(self) -> None:
        """Stop looking after the runs; they go on, and the next start finds them."""
        self._attendant.close()

    def _behind(self) -> TrainService:
        from lib_lora.ui.train_service import open_service

        with self._lock:
            if self._service is None:
                host = self._open_host()
                self._service = open_service(host, self._runs, host.info().name)
            return self._service

    def _host_and_queue(self) -> tuple[Host, Queue]:
        from lib_lora.jobs.queue import Queue

        host = self._open_host()
        return host, Queue(self._runs, host.info().name)
