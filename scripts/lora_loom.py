"""Registers LoRA Loom with the WebUI: every callback is one call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from modules import script_callbacks, shared

from lib_lora.hosts.a1111 import CutIn
from lib_lora.jobs.recent import recent_runs

if TYPE_CHECKING:
    from lib_lora.host import Host

RUNS = Path(__file__).parents[1] / "runs"


class Pages:
    """The tab and its routes; what they need is imported when the WebUI builds its pages, and the rest when it is asked for."""

    pages = None

    def tabs(self) -> list[tuple[object, str, str]]:
        from lib_lora.ui.webui import WebuiPages

        import_api()
        self.pages = WebuiPages(open_host, RUNS)
        return self.pages.tabs()

    def start(self, _: object, app: object) -> None:
        if self.pages is not None:
            self.pages.start(app)

    def close(self) -> None:
        if self.pages is not None:
            self.pages.close()


def import_api() -> None:
    """Import what the WebUI imports for `--api` once it listens, a moment before.

    A page that waits for this WebUI asks as soon as it listens. If that is while the WebUI still imports its API, which then adds a
    middleware to an application that has answered already, its start ends there.
    """
    if shared.cmd_opts.api:
        importlib.import_module("modules.api.api")


def open_host() -> Host:
    """Return the WebUI as the pages see it."""
    from lib_lora.hosts.a1111_host import A1111Host

    return A1111Host()


def on(event: str, callback: Callable[..., object]) -> None:
    """Register a callback as the WebUI's `on_...` do, which without the file's name go through all modules to find it out."""
    callbacks = script_callbacks.callback_map[f"callbacks_{event}"]
    script_callbacks.add_callback(callbacks, callback, category=event, filename=__file__)


if recent_runs(RUNS):
    from lib_lora.hosts.a1111_gpu import begin_lent

    begin_lent(RUNS)

cut_in, pages = CutIn(), Pages()
cut_in.install()
on("cfg_denoiser", cut_in.arm)
on("cfg_after_cfg", cut_in.disarm)
on("ui_tabs", pages.tabs)
on("app_started", pages.start)
on("script_unloaded", cut_in.uninstall)
on("script_unloaded", pages.close)
