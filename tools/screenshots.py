"""Draw the README's pictures of the pages from the pages themselves: serve, train the example in a browser, and photograph what stands there.

    python tools/screenshots.py [OUT_DIR]        needs Chromium and Playwright

Pictures are reduced to 256 colours, so that they stay small.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
DONUTS = ROOT / "lib_lora" / "demo" / "dataset" / "donut"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
WIDTH, HEIGHT, PORT = 1366, 800, 7899
PATIENCE = 600_000
PAGE = "#lora_loom_train"
HALF_WAY = 230
FIELDS = {
    "saving.out": "donut",
    "network.rank": "8",
    "schedule.steps": "400",
    "schedule.batch": "4",
    "optimizer.unet_rate": "0.001",
    "loss.validation_every": "40",
    "samples.prompts": "a blue donut on a beige background\na red donut on a white background",
    "samples.every": "50",
    "samples.steps": "12",
}


def main(arguments: list[str]) -> int:
    """Write every picture and return 0."""
    out = Path(arguments[0]) if arguments else ROOT / "docs"
    # A name without anything random in it: it is to be read in the pictures.
    folder = Path(tempfile.gettempdir()) / "loom"
    shutil.copytree(DONUTS, folder / "donuts")
    server = serve(folder)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
            take(browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}), out, folder)
            browser.close()
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)
    return 0


def serve(folder: Path) -> subprocess.Popen[str]:
    """Start the server and return when it can be asked."""
    options = ["--port", str(PORT), "--runs", str(folder / "runs"), "--lora-dir", "out"]
    server = subprocess.Popen(
        [sys.executable, "-m", "lib_lora.cli.main", "serve", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    server.stdout.readline()
    return server


def take(page: Page, out: Path, folder: Path) -> None:
    """Go through a training and photograph the form, the training half way in the dark theme, and its end."""
    address = f"http://127.0.0.1:{PORT}/?__theme="
    page.goto(f"{address}light")
    page.wait_for_selector(f"{PAGE} .bars > *", timeout=PATIENCE)
    for name, value in {"data.folder": str(folder / "donuts"), **FIELDS}.items():
        field = page.locator(f"{PAGE} [name='{name}']")
        field.evaluate("field => field.closest('details')?.setAttribute('open', '')")
        field.fill(value)
    page.evaluate(
        "document.querySelectorAll('details[open]').forEach(each => { each.open = false })"
    )
    page.wait_for_selector(f"{PAGE} .report .figures", timeout=PATIENCE)
    page.evaluate("document.activeElement.blur()")
    page.evaluate("window.scrollTo(0, 0)")
    photograph(page, out / "train_form.png")
    page.click(f"{PAGE} button:has-text('Start training')")
    page.wait_for_selector(f"{PAGE} .status.running", timeout=PATIENCE)
    page.goto(f"{address}dark")
    page.wait_for_function(
        f"document.querySelector('{PAGE} .run progress')?.value >= {HALF_WAY}", timeout=PATIENCE
    )
    photograph(page, out / "train_live.png")
    page.wait_for_selector(f"{PAGE} .status.done", timeout=PATIENCE)
    page.goto(f"{address}light")
    page.wait_for_selector(f"{PAGE} .finished:visible", timeout=PATIENCE)
    page.wait_for_timeout(1500)
    photograph(page, out / "train_done.png")


def photograph(page: Page, file: Path) -> None:
    """Write what is in view as a PNG of few colours."""
    page.wait_for_timeout(500)
    page.screenshot(path=file)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
