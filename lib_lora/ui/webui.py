"""The Train page inside of a WebUI: its tab, its routes, and the thread that looks after the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from lib_lora.host import Host
from lib_lora.jobs.queue import Queue
from lib_lora.ui.attendant import Attendant
from lib_lora.ui.routes import add_train_routes
from lib_lora.ui.train_page import build_tab, page_token
from lib_lora.ui.train_service import open_service

TITLE, ELEMENT = "LoRA Loom", "lora_loom"


class WebuiPages:
    """host: the WebUI of this process; runs: the folder of runs, which `loom.py jobs` finds too when it is in the extension's."""

    def __init__(self, host: Host, runs: Path) -> None:
        self._host, self._runs = host, runs
        self._token = page_token(runs)
        self._attendant: Attendant | None = None

    def tabs(self) -> list[tuple[Any, str, str]]:
        """Return the tab as the WebUI's `on_ui_tabs` wants it."""
        return [(build_tab(self._token), TITLE, ELEMENT)]

    def start(self, app: FastAPI) -> None:
        """Add the routes to the WebUI's application and begin to look after the runs."""
        info = self._host.info()
        add_train_routes(app, open_service(self._host, self._runs, info.name), self._token)
        self._attendant = Attendant(self._host, Queue(self._runs, info.name))
        self._attendant.start()

    def close(self) -> None:
        """Stop looking after the runs; they go on, and the next start finds them."""
        if self._attendant is not None:
            self._attendant.close()
