"""The server for real: the `serve` command on a free port, its page fetched, a picture asked for as the page does."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import gradio as gr
import pytest

from lib_lora.cli.main import main
from lib_lora.ui.server import is_loopback

tiny = pytest.importorskip("tests.tiny", reason="the pages draw with diffusers, which is not here")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    int(gr.__version__.partition(".")[0]) < 6, reason="`serve` runs on the newest Gradio"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base = tiny.tiny_checkpoint(folder)
    command = [sys.executable, "-m", "lib_lora.cli.main", "serve", "--port", "0"]
    options = ["--base", str(base), "--lora-dir", str(folder), "--runs", str(folder)]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        yield re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
        server.send_signal(signal.SIGTERM)


def fetch(url, data=None, headers=None):
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/json", **(headers or {})}
    )
    # No proxy may come between us and this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=120)


def ask(address, *inputs):
    """Ask for a picture as the page does and return its three answers."""
    call = f"{address}gradio_api/call/generate"
    event = json.load(fetch(call, {"data": list(inputs)}))["event_id"]
    stream = fetch(f"{call}/{event}").read().decode()
    assert "event: complete" in stream, stream
    return json.loads(stream.split("data: ")[-1])


def test_the_page_is_served_and_asks_no_one_else(address):
    answer = fetch(address)
    page = answer.read().decode()
    assert answer.status == 200
    assert re.search(r'"title":\s*"LoRA Loom"', page)
    assert "fonts.googleapis.com" not in page
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    script = re.search(r'src="\./(assets/index[^"]+\.js)"', page)[1]
    assert fetch(address + script).status == 200


def test_the_page_answers_to_no_other_name(address):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        fetch(address, headers={"Host": "evil.example"})


def without_escapes(markdown):
    """Return what Markdown shows of a text in which every sign is escaped."""
    return re.sub(r"\\(.)", r"\1", markdown)


def test_a_picture_is_drawn_and_a_bad_tag_is_told(address):
    prompt = "a red circle <lora:nothing:1> <lora:x:2@>"
    picture, plot, notes = ask(address, prompt, "", "Euler", 2, 3, 64, 64, 5, "", "")
    header = fetch(picture["url"]).read(8)
    assert header == b"\x89PNG\r\n\x1a\n"
    assert plot == ""
    shown = without_escapes(notes)
    assert "There is no LoRA 'nothing'" in shown
    assert "<lora:x:2@> is left out" in shown
    assert "Seed 5, 2 steps, Euler." in shown


def test_what_cannot_be_is_a_sentence_in_the_page(address):
    picture, _, notes = ask(address, "x", "", "Euler", 2, 3, 63, 64, 5, "", "")
    assert picture is None
    assert "sides must be multiples of 8" in notes
    _, _, notes = ask(address, "x", "", "Euler", 2, 3, 64, 64, 5, "/nowhere.safetensors", "")
    assert without_escapes(notes) == "There is no checkpoint '/nowhere.safetensors'."


def test_every_number_outside_of_its_limits_is_named(address):
    """A field with limits of its own would refuse before, in words that do not name it."""
    picture, _, notes = ask(address, "x", "", "Euler", 0, 0, 0, 0, -1, "", "")
    assert picture is None
    accepted = ("Steps", "Guidance", "Width", "Height", "Seed")
    assert re.findall(r"(\w+) accepts", without_escapes(notes)) == list(accepted)


def test_a_taken_port_is_told_in_a_sentence(address, capsys):
    port = re.search(r":(\d+)/", address)[1]
    assert main(["serve", "--port", port]) == 1
    assert f"Port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err


def test_loopback_is_told_from_the_rest():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "example.com")))
