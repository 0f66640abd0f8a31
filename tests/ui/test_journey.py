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
PATIENCE = 120_000
MILLISECONDS_BACK = 2000
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
    try:
        assert "LoRA Loom is at" in server.stdout.readline()
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for file in sorted(DONUTS.glob("donut-0[1-4].*")):
        shutil.copy(file, tmp_path / "pictures")
    return tmp_path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


# The page's own counts, whatever else keeps the machine busy: how often it asked how the runs stand, and how long it rests while nobody
# answers.
COUNTING = """() => {
    window.asked = 0;
    window.rests = [];
    const ask = window.fetch, rest = window.setTimeout;
    window.fetch = (address, ...others) => {
        if (String(address).includes("lora_loom/state?")) window.asked += 1;
        return ask(address, ...others);
    };
    window.setTimeout = (act, milliseconds, ...others) => {
        const offline = document.querySelector("#lora_loom_train .offline:not([hidden])");
        if (offline && act.name === "goOn") window.rests.push(milliseconds);
        return rest(act, milliseconds, ...others);
    };
}"""
IS_SHOWN = "(looked_for) => document.querySelector(looked_for) && window.asked"


def times_asked_until_shown(page, selector):
    """Return how often a page that was just opened asked until what is looked for stands in its place."""
    shown = page.wait_for_function(IS_SHOWN, arg=f"{PAGE} {selector}", timeout=PATIENCE)
    return shown.json_value()


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
        page.add_init_script(f"({COUNTING})()")
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
            assert times_asked_until_shown(page, ".run:not([hidden]) h2") == 1
            assert page.inner_text(f"{PAGE} .run h2") == "donuts"
            # What was filled in is still there.
            assert page.input_value(f"{PAGE} [name='network.rank']") == "4"
            other = opened.new_context().new_page()
            other.add_init_script(f"({COUNTING})()")
            other.goto(address)
            assert times_asked_until_shown(other, ".run:not([hidden]) h2") == 1
            assert other.inner_text(f"{PAGE} .run h2") == "donuts"
        page.wait_for_selector(f"{PAGE} .offline:visible", timeout=PATIENCE)
        with serving(folder, port) as address:
            before = page.evaluate("window.asked")
            back = page.wait_for_function(
                IS_SHOWN, arg=f"{PAGE} .offline[hidden]", timeout=PATIENCE
            )
            # It asked the new server once at most, and never rested too long before.
            assert back.json_value() - before <= 1
            assert 0 < max(page.evaluate("window.rests")) < MILLISECONDS_BACK
            page.wait_for_selector(f"{PAGE} .status.done", timeout=PATIENCE)
            assert "60 / 60" in page.inner_text(f"{PAGE} .run .figures")
            file = folder / "loras" / "donuts.safetensors"
            assert file.stat().st_size > 1000
            page.click(f"{PAGE} button:has-text('Try it')")
            prompt = page.wait_for_selector("#txt2img_prompt textarea:visible")
            assert re.search(r"<lora:donuts:1>", prompt.input_value())
            wait_until_delivered(folder / "runs")
        assert errors == []
