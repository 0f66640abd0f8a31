"""The steps of a training in a real browser, the same in every host: what a person does, and what stands on the page then."""

import importlib.util
import shutil
import socket
import time
from pathlib import Path

import pytest

from tests.ui.browser import CHROMIUM, NO_PLAYWRIGHT

DONUTS = Path(__file__).parents[2] / "lib_lora" / "demo" / "dataset" / "donut"
PATIENCE = 120_000
MILLISECONDS_BACK = 2000
PAGE = "#lora_loom_train"
RUN = ".run:not([hidden]) h2"

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason=NO_PLAYWRIGHT
)

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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def copy_pictures(folder):
    """Put four pictures with their captions into a new folder."""
    folder.mkdir()
    for file in sorted(DONUTS.glob("donut-0[1-4].*")):
        shutil.copy(file, folder)
    return folder


def counted(context, errors):
    """Return a new page that counts; what its scripts fail with is added to `errors`."""
    page = context.new_page()
    page.add_init_script(f"({COUNTING})()")
    page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
    return page


def times_asked_until_shown(page, selector):
    """Return how often a page that was just opened asked until what is looked for stands in its place."""
    shown = page.wait_for_function(IS_SHOWN, arg=f"{PAGE} {selector}", timeout=PATIENCE)
    return shown.json_value()


def refuse_without_a_name(page):
    """Start with an empty form and read what is said beside its field."""
    page.wait_for_selector(f"{PAGE} form", timeout=PATIENCE)
    page.click(f"{PAGE} button:has-text('Start training')")
    page.wait_for_selector(f"{PAGE} .wrong:has-text('Give it a name.')")


def fill_and_start(page, pictures, **fields):
    """Fill the form and start; fields: other values, by name."""
    basic = {"data.folder": pictures, "saving.out": "donuts", "data.size": 64, "network.rank": 4}
    for name, value in {**basic, **fields}.items():
        page.fill(f"{PAGE} [name='{name}']", str(value))
    page.click(f"{PAGE} button:has-text('Start training')")


def see_it_at_once(page):
    """Expect the run with the first answer to a page that was just opened."""
    assert times_asked_until_shown(page, RUN) == 1
    assert page.inner_text(f"{PAGE} .run h2") == "donuts"


def be_back_soon(page, before):
    """Expect a page that stayed open to have asked the new server once at most, and to have never rested too long before."""
    back = page.wait_for_function(IS_SHOWN, arg=f"{PAGE} .offline[hidden]", timeout=PATIENCE)
    assert back.json_value() - before <= 1
    assert 0 < max(page.evaluate("window.rests")) < MILLISECONDS_BACK


def step_shown(page):
    """Return the step of the run that the page shows."""
    text = page.inner_text(f"{PAGE} .run .figures")
    return int(text.partition("/")[0].split()[-1])


def wait_until_delivered(runs):
    """The attendant looks every second, so the page may show a run as done before it is made known."""
    end = time.monotonic() + PATIENCE / 1000
    while list(runs.glob("*/undelivered")):
        assert time.monotonic() < end, "the LoRA was never made known"
        time.sleep(0.1)


def try_it(page):
    """Press the button and return what stands in the prompt then."""
    page.click(f"{PAGE} button:has-text('Try it')")
    return page.wait_for_selector("#txt2img_prompt textarea:visible").input_value()
