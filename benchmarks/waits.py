"""What a person waits for: `install.py` at the WebUI's start, the command line's start, and the Train page after a reload and a restart.

Run as `python3 -m benchmarks.waits`, on a machine with nothing else to do: every figure is printed beside the one allowed, in seconds by
the clock or of the processor. The tests compare within one process instead and count what the page asks for. Needs Chromium.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from playwright.sync_api import Page

from tests.test_install import Extension, processor_seconds
from tests.test_loom import Project
from tests.ui.browser import browser
from tests.ui.test_journey import DONUTS, PAGE, PATIENCE, fill_and_start, free_port, serving

ROUNDS = 10
INSTALL, ENTERED, SHOWN = 0.05, 2.0, 2.0


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _tell(
            "install.py with nothing to do, beyond `pass`, processor", _installing(folder), INSTALL
        )
        _tell("loom.py until the command begins", _entering(folder / "loom"), ENTERED)
        for what, seconds in _views(folder).items():
            _tell(what, seconds, SHOWN)


def _tell(what: str, seconds: float, allowed: float) -> None:
    verdict = "within" if seconds <= allowed else "OVER"
    print(f"{what:<55}{seconds:>7.3f} s, {verdict} the {allowed} s allowed")


def _installing(folder: Path) -> float:
    extension = Extension(folder)
    extension.install()
    script = str(extension.root / "install.py")
    with mock.patch.dict(os.environ, extension.env):
        pairs = [
            (processor_seconds("-c", "pass"), processor_seconds(script)) for _ in range(ROUNDS)
        ]
    nothing, all_of_it = (min(times) for times in zip(*pairs, strict=True))
    return all_of_it - nothing


def _entering(folder: Path) -> float:
    project = Project(folder)
    project.require("loom-probe==1.0\n")
    project.run("inspect", "x")

    def once() -> float:
        began = time.time()
        _, out, _ = project.run("inspect", "x")
        return float(re.search(r"entered=([\d.]+)", out)[1]) - began

    return min(once() for _ in range(ROUNDS))


def _views(folder: Path) -> dict[str, float]:
    """Return the seconds from when a page or a server is there until the view of a run is back."""
    (folder / "pictures").mkdir()
    for file in sorted(DONUTS.glob("donut-0[1-4].*")):
        shutil.copy(file, folder / "pictures")
    port, seconds = free_port(), {}
    with browser() as opened:
        page = opened.new_page()
        with serving(folder, port) as address:
            page.goto(address)
            page.wait_for_selector(f"{PAGE} form", timeout=PATIENCE)
            fill_and_start(page, folder)
            page.wait_for_selector(f"{PAGE} .status.running", timeout=PATIENCE)
            page.reload()
            seconds["the view after a reload"] = _until_shown(page)
            other = opened.new_context().new_page()
            other.goto(address)
            seconds["the view in a second browser"] = _until_shown(other)
        page.wait_for_selector(f"{PAGE} .offline:visible", timeout=PATIENCE)
        with serving(folder, port):
            seconds["the view after the server's restart"] = _until(
                lambda: page.wait_for_selector(f"{PAGE} .offline", state="hidden", timeout=PATIENCE)
            )
            page.wait_for_selector(f"{PAGE} .status.done", timeout=PATIENCE)
    return seconds


def _until_shown(page: Page) -> float:
    page.wait_for_selector(PAGE, timeout=PATIENCE)
    wanted = f"{PAGE} .run h2:has-text('donuts')"
    return _until(lambda: page.wait_for_selector(wanted, timeout=PATIENCE))


def _until(wait: Callable[[], object]) -> float:
    began = time.monotonic()
    wait()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
