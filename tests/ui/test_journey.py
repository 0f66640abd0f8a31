"""The whole way in a real browser, standalone: train, reload, kill the host, start it again, done, try it."""

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ui import journey
from tests.ui.browser import browser
from tests.ui.journey import PAGE, PATIENCE

ROOT = Path(__file__).resolve().parents[2]

pytestmark = journey.needs_browser


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
def port():
    return journey.free_port()


def test_train_reload_restart_done_try(tmp_path, port):
    errors = []
    with browser() as opened:
        page = journey.counted(opened, errors)
        with serving(tmp_path, port) as address:
            page.goto(address)
            journey.refuse_without_a_name(page)
            pictures = journey.copy_pictures(tmp_path / "pictures")
            journey.fill_and_start(page, pictures, **{"schedule.steps": 60})
            page.wait_for_selector(f"{PAGE} .status.running", timeout=PATIENCE)
            page.reload()
            journey.see_it_at_once(page)
            # What was filled in is still there.
            assert page.input_value(f"{PAGE} [name='network.rank']") == "4"
            other = journey.counted(opened.new_context(), errors)
            other.goto(address)
            journey.see_it_at_once(other)
        page.wait_for_selector(f"{PAGE} .offline:visible", timeout=PATIENCE)
        with serving(tmp_path, port):
            journey.be_back_soon(page, page.evaluate("window.asked"))
            page.wait_for_selector(f"{PAGE} .status.done", timeout=PATIENCE)
            assert journey.step_shown(page) == 60
            assert (tmp_path / "loras" / "donuts.safetensors").stat().st_size > 1000
            assert re.search(r"<lora:donuts:1>", journey.try_it(page))
            journey.wait_until_delivered(tmp_path / "runs")
        assert errors == []
