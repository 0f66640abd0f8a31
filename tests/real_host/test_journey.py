"""The whole way in a real browser and the real WebUI: train, reload, kill the WebUI, start it again, done, try it, draw with it.

The extension is copied, so that its runs and its worker's packages are these tests' own.
"""

import io
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from lib_lora.demo.webui import write_webui_folder
from tests.real_host.conftest import MISSING, OWN
from tests.real_host.models import BASE
from tests.real_host.pictures import CLEARLY, PROMPT
from tests.real_host.process import DIR, ENVIRONMENT, FLAGS, PYTHON, ROOT
from tests.ui import journey
from tests.ui.browser import browser
from tests.ui.journey import PAGE, PATIENCE

NAME = "lora-loom"
PARTS = ("scripts", "lib_lora", "javascript", "requirements", "style.css", "install.py")
SERVED = tuple(flag for flag in FLAGS if flag != "--nowebui")
PREPARE = f"{PAGE} .prepare"
STEPS = 400
START_SECONDS = 900
SMALL = {"steps": 4, "width": 64, "height": 64}
SHOTS = os.environ.get("LOOM_SCREENSHOTS")

pytestmark = [journey.needs_browser, pytest.mark.skipif(not OWN, reason=MISSING)]


@pytest.fixture
def folder(tmp_path):
    """A folder of data with the extension, its worker's packages if they are at hand, and the embedded model."""
    extension = tmp_path / "extensions" / NAME
    extension.mkdir(parents=True)
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, extension / name)
    write_webui_folder(BASE, tmp_path / "checkpoints")
    (tmp_path / "networks").mkdir()
    return tmp_path


@pytest.fixture
def prepared(folder):
    """The same, with the worker's packages."""
    extension = folder / "extensions" / NAME
    if (ROOT / ".worker").is_dir():
        shutil.copytree(ROOT / ".worker", extension / ".worker")
    subprocess.run([PYTHON, "install.py"], cwd=extension, check=True)
    return folder


@contextmanager
def serving(folder, port, *flags):
    """Serve the WebUI's pages until the end of the block; killed then, as by a crash, with no chance to tidy up."""
    places = {
        "data-dir": folder,
        "ckpt-dir": folder / "checkpoints",
        "lora-dir": folder / "networks",
    }
    options = [text for name, place in places.items() for text in (f"--{name}", str(place))]
    log = folder / f"log-{time.monotonic_ns()}.txt"
    with log.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(
            [PYTHON, "launch.py", *SERVED, "--api", "--port", str(port), *options, *flags],
            cwd=DIR,
            env={**os.environ, **ENVIRONMENT, "MPLCONFIGDIR": str(folder / "matplotlib")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}/"
    try:
        end = time.monotonic() + START_SECONDS
        # Nobody asks before: this WebUI ends where it has answered anybody before it has added its API.
        while "Startup time" not in log.read_text("utf-8"):
            assert server.poll() is None, log.read_text("utf-8")[-4000:]
            assert time.monotonic() < end, log.read_text("utf-8")[-4000:]
            time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()


def ours(errors):
    """Return the errors of this extension's scripts: the WebUI's own page fails by itself where a picture is asked for."""
    return [error for error in errors if f"/{NAME}/" in error]


def open_tab(page):
    page.click("#tabs button:has-text('LoRA Loom')", timeout=PATIENCE)


def seen(page, name):
    """Keep a picture of what stands on the page, for people."""
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def drawn(page, prompt):
    """Press Generate with this prompt and return the picture that the page shows then."""
    page.fill("#txt2img_prompt textarea", prompt)
    shown = "[...document.querySelectorAll('#txt2img_gallery img')].map((each) => each.src).find((src) => src.includes('file='))"
    before = page.evaluate(shown)
    page.click("#txt2img_generate")
    another = f"(before) => {{ const now = {shown}; return now !== before && now; }}"
    source = page.wait_for_function(another, arg=before, timeout=PATIENCE).json_value()
    body = page.request.get(source).body()
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGB"), dtype=np.float64)


def assert_delivered(folder, address):
    """The LoRA lies in the WebUI's folder with its metadata, its preview and its words, and the WebUI knows it."""
    file = folder / "networks" / "donuts.safetensors"
    with safe_open(file, "pt") as tensors:
        assert tensors.metadata()["ss_network_dim"] == "4"
    assert Image.open(file.with_suffix(".png")).size == (64, 64)
    assert "activation text" in json.loads(file.with_suffix(".json").read_text("utf-8"))
    with urllib.request.urlopen(f"{address}sdapi/v1/loras") as answer:
        assert [network["name"] for network in json.load(answer)] == ["donuts"]


def test_train_reload_restart_done_try_draw(prepared, figures):
    port, errors = journey.free_port(), []
    runs = prepared / "extensions" / NAME / "runs"
    with browser() as opened:
        page = journey.counted(opened, errors)
        with serving(prepared, port) as address:
            page.goto(address)
            open_tab(page)
            journey.refuse_without_a_name(page)
            seen(page, "1 a name is missing")
            fields = {
                "schedule.steps": STEPS,
                "optimizer.unet_rate": 0.002,
                "data.caption": "donuts",
            }
            pictures = journey.copy_pictures(prepared / "pictures")
            journey.fill_and_start(page, pictures, **fields, **{"samples.prompts": PROMPT})
            page.wait_for_selector(f"{PAGE} .status.running", timeout=PATIENCE)
            seen(page, "2 running")
            page.reload()
            open_tab(page)
            journey.see_it_at_once(page)
            seen(page, "3 reloaded")
            other = journey.counted(opened.new_context(), errors)
            other.goto(address)
            open_tab(other)
            journey.see_it_at_once(other)
            seen(other, "4 another browser")
            before = journey.step_shown(page)
        page.wait_for_selector(f"{PAGE} .offline:visible", timeout=PATIENCE)
        seen(page, "5 the WebUI is killed")
        with serving(prepared, port):
            journey.be_back_soon(page, page.evaluate("window.asked"))
            page.reload()
            open_tab(page)
            begun = time.monotonic()
            journey.see_it_at_once(page)
            figures("seconds until the view is back", time.monotonic() - begun)
            seen(page, "6 started again")
            assert journey.step_shown(page) > before
            page.wait_for_selector(f"{PAGE} .status.done", timeout=10 * PATIENCE)
            assert journey.step_shown(page) == STEPS
            journey.wait_until_delivered(runs)
            assert_delivered(prepared, address)
            seen(page, "7 done")
            prompt = journey.try_it(page)
            assert "<lora:donuts:1>" in prompt
            seen(page, "8 try it")
            for name, value in SMALL.items():
                page.fill(f"#txt2img_{name} input[type=number]", str(value))
            page.fill("#txt2img_seed input", "3")
            with_it, again, without = (drawn(page, words) for words in (prompt, prompt, PROMPT))
            seen(page, "9 drawn")
            assert np.array_equal(with_it, again)
            assert figures("with to without", float(np.abs(with_it - without).mean())) > CLEARLY
        assert ours(errors) == []


def test_prepare_in_the_browser_and_train_without_a_restart(folder):
    port, errors = journey.free_port(), []
    with browser() as opened, serving(folder, port) as address:
        page = journey.counted(opened, errors)
        page.goto(address)
        open_tab(page)
        pressed = page.wait_for_selector(f"{PREPARE} button:visible", timeout=PATIENCE)
        assert "diffusers" in page.inner_text(f"{PREPARE} p")
        seen(page, "10 to be prepared")
        pressed.click()
        page.wait_for_selector(PREPARE, state="hidden", timeout=10 * PATIENCE)
        pictures = journey.copy_pictures(folder / "pictures")
        journey.fill_and_start(page, pictures, **{"schedule.steps": 4})
        page.wait_for_selector(f"{PAGE} .status.done", timeout=10 * PATIENCE)
        seen(page, "12 prepared and trained")
        assert ours(errors) == []


def test_a_webui_that_is_open_to_the_network_lets_nobody_install(folder):
    port, errors = journey.free_port(), []
    with browser() as opened, serving(folder, port, "--server-name", "127.0.0.1") as address:
        page = journey.counted(opened, errors)
        page.goto(address)
        open_tab(page)
        said = page.wait_for_selector(f"{PREPARE} p:has-text('nobody install')", timeout=PATIENCE)
        assert said.is_visible()
        assert not page.is_visible(f"{PREPARE} button")
        seen(page, "13 open to the network")
        assert ours(errors) == []
