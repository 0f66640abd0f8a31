"""The whole way in a real browser, standalone: train, reload, kill the host, start it again, done, try it."""

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ui.browser import CHROMIUM, NO_PLAYWRIGHT, browser

ROOT = Path(__file__).resolve().parents[2]
DONUTS = ROOT / "lib_lora" / "demo" / "dataset" / "donut"
SECONDS_BACK = 2.0
PATIENCE = 120_000
PAGE = "#lora_loom_train"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason=NO_PLAYWRIGHT
)


@contextmanager
def serving(folder, port):
    """Serve until the end of the block; killed then, as by a crash, with no chance to tidy up."""
    options = ["--port", str(port), "--runs", folder / "runs", "--lora-dir", folder / "loras"]
    server = subprocess.Popen(
        [sys.executable, "-m", "lib_lora.cli.main", "serve", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "LoRA Loom is at" in server.stdout.readline()
    yield f"http://127.0.0.1:{port}/"
    server.kill()
    server.wait()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for file in sorted(DONUTS.glob("donut-0[1-4].*")):
        shutil.copy(file, tmp_path / "pictures")
    return tmp_path


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until_shown(page, selector):
    """Return the seconds from when the page's place is there until what is looked for stands in it."""
    page.wait_for_selector(PAGE, timeout=PATIENCE)
    begun = time.monotonic()
    page.wait_for_selector(f"{PAGE} {selector}", timeout=PATIENCE)
    return time.monotonic() - begun


def fill_and_start(page, folder):
    fields = {"data.folder": folder / "pictures", "saving.out": "donuts", "data.size": 64}
    for name, value in {**fields, "schedule.steps": 60, "network.rank": 4}.items():
        page.fill(f"{PAGE} [name='{name}']", str(value))
    page.click(f"{PAGE} button:has-text('Start training')")


def wait_until_delivered(runs):
    """The attendant looks every second, so the page may show a run as done before it is made known."""
    end = time.monotonic() + PATIENCE / 1000
    while list(runs.glob("*/undelivered")):
        assert time.monotonic() < end, "the LoRA was never made known"
        time.sleep(0.1)


def test_train_reload_restart_done_try(folder, port):
    with browser() as opened:
        page = opened.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        with serving(folder, port) as address:
            page.goto(address)
            page.wait_for_selector(f"{PAGE} form", timeout=PATIENCE)
            page.click(f"{PAGE} button:has-text('Start training')")
            page.wait_for_selector(f"{PAGE} .wrong:has-text('Give it a name.')")
            fill_and_start(page, folder)
            page.wait_for_selector(f"{PAGE} .status.running", timeout=PATIENCE)
            page.reload()
            assert until_shown(page, ".run h2:has-text('donuts')") < SECONDS_BACK
            # What was filled in is still there.
            assert page.input_value(f"{PAGE} [name='network.rank']") == "4"
            other = opened.new_context().new_page()
            other.goto(address)
            assert until_shown(other, ".run h2:has-text('donuts')") < SECONDS_BACK
        page.wait_for_selector(f"{PAGE} .offline:visible", timeout=PATIENCE)
        with serving(folder, port) as address:
            begun = time.monotonic()
            page.wait_for_selector(f"{PAGE} .offline", state="hidden", timeout=PATIENCE)
            assert time.monotonic() - begun < SECONDS_BACK
            page.wait_for_selector(f"{PAGE} .status.done", timeout=PATIENCE)
            assert "60 / 60" in page.inner_text(f"{PAGE} .run .figures")
            file = folder / "loras" / "donuts.safetensors"
            assert file.stat().st_size > 1000
            page.click(f"{PAGE} button:has-text('Try it')")
            prompt = page.wait_for_selector("#txt2img_prompt textarea:visible")
            assert re.search(r"<lora:donuts:1>", prompt.input_value())
            wait_until_delivered(folder / "runs")
        assert errors == []
