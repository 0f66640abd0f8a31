"""Chromium for the tests of the pages, driven by Playwright or, where that is not installed, asked for one page's elements."""

import os
import shutil
import subprocess
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
NO_CHROMIUM = "CHROMIUM IS NOT HERE: the pages are not tried in a browser"
NO_PLAYWRIGHT = "CHROMIUM OR PLAYWRIGHT IS NOT HERE: the journey in a browser is not tried"


def elements_of(url, folder):
    """Return a page's elements as text, once its scripts have settled."""
    options = [*OPTIONS, f"--user-data-dir={folder}", "--virtual-time-budget=12000", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, "--headless", *options, url],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "no_proxy": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def browser():
    """Open a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()
