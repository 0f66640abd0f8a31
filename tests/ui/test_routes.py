"""The routes, asked over HTTP: who gets an answer, and what becomes of what goes wrong."""

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
import uvicorn
from fastapi import FastAPI

from lib_lora.errors import ConfigError, UsageError
from lib_lora.ui.routes import SCRIPTS, add_asset_routes, add_train_routes

TOKEN = "secret-token"


class Service:
    """Answers as `TrainService` does; `file` is the one sample there is."""

    def __init__(self, file):
        self.file, self.asked = file, []

    def page(self):
        return {"host": "test"}

    def bases(self):
        return {"bases": []}

    def state(self, run, after):
        return {"run": run, "after": after}

    def sample(self, run, name):
        if run != "one":
            raise UsageError("There is no such run.")
        return self.file if name == "a.png" else None

    def plan(self, body):
        raise ConfigError([("network.rank", "Too high."), ("network", "Nothing is trained.")])

    def dataset(self, body):
        if "folder" in body:
            return {"problems": [f"{body['folder']} is no picture."]}
        raise UsageError("There is no folder.")

    def add(self, body):
        raise ZeroDivisionError("a secret of the code")

    def prepare(self, body):
        self.asked.append(body)
        return {}

    def command(self, run, body):
        self.asked.append((run, body))
        return {"message": "done"}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    file = tmp_path_factory.mktemp("samples") / "a.png"
    file.write_bytes(b"picture")
    return Service(file)


@pytest.fixture(scope="module")
def address(service):
    app = FastAPI()

    @app.get("/{rest:path}")
    def everything_else(rest: str):
        return "a page mounted at the root"

    add_asset_routes(app)
    add_train_routes(app, lambda: service, TOKEN)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/lora_loom/"
        server.should_exit = True
        thread.join(10)


def ask(url, body=None, token=TOKEN, kind="application/json", **headers):
    """Return the status and the answer, JSON where it is some."""
    told = {"X-Loom-Token": token, **headers} if token else headers
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {**told, **({"Content-Type": kind} if data else {})}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_what_is_asked_for_is_answered(address):
    status, body = ask(f"{address}page")
    assert (status, json.loads(body)) == (200, {"host": "test"})
    _, body = ask(f"{address}state?run=one&after=12")
    assert json.loads(body) == {"run": "one", "after": 12}
    for after in ("-5", "9" * 5000, ""):
        _, body = ask(f"{address}state?after={after}")
        assert json.loads(body) == {"run": "", "after": 0}
    assert ask(f"{address}runs/one/samples/a.png") == (200, b"picture")
    assert ask(f"{address}runs/one/samples/b.png")[0] == 404
    assert ask(f"{address}runs/two/samples/a.png")[0] == 404


def test_what_is_asked_of_a_run_arrives(address, service):
    status, body = ask(f"{address}runs/a%20run/command", {"command": "save"})
    assert (status, json.loads(body)) == (200, {"message": "done"})
    assert service.asked[-1] == ("a run", {"command": "save"})


@pytest.mark.parametrize("path", ["page", "state", "bases", "runs/one/samples/a.png"])
@pytest.mark.parametrize("token", ["", "wrong", "sécret"])
def test_nothing_is_told_without_the_token(address, path, token):
    status, body = ask(f"{address}{path}", token=token.encode().decode("latin-1"))
    assert status == 403
    assert b"picture" not in body


@pytest.mark.parametrize("path", ["dataset", "plan", "runs", "prepare", "runs/one/command"])
def test_nothing_is_done_without_the_token(address, service, path):
    before = list(service.asked)
    assert ask(f"{address}{path}", {}, token="wrong")[0] == 403
    assert service.asked == before


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_form_of_another_page_does_nothing(address, service, kind):
    before = list(service.asked)
    assert ask(f"{address}prepare", {}, kind=kind)[0] == 415
    assert ask(f"{address}prepare", b"[]")[0] == 400
    assert ask(f"{address}prepare", b"{")[0] == 400
    assert ask(f"{address}prepare", b" " * (1 << 20) + b"{}")[0] == 413
    assert service.asked == before


def test_a_get_changes_nothing(address, service):
    before = list(service.asked)
    assert json.loads(ask(f"{address}prepare")[1]) == "a page mounted at the root"
    assert service.asked == before


def test_problems_of_a_form_come_with_their_fields(address):
    status, body = ask(f"{address}plan", {})
    told = json.loads(body)
    assert status == 422
    assert told["problems"] == [
        ["network.rank", "Too high."],
        ["network.type", "Nothing is trained."],
    ]


def test_what_is_refused_is_a_sentence_and_what_breaks_tells_no_secret(address):
    assert ask(f"{address}dataset", {}) == (409, b'{"message":"There is no folder."}')
    status, body = ask(f"{address}runs", {})
    assert status == 500
    assert b"secret of the code" not in body
    assert b"server's log" in body


def test_a_file_name_that_is_no_text_comes_through_both_ways(address):
    """As an archive of another system leaves it: Latin-1 bytes, which Python holds as a lone surrogate."""
    name = os.fsdecode(b"caf\xe9.png")
    status, body = ask(f"{address}dataset", {"folder": name})
    assert status == 200
    assert json.loads(body) == {"problems": [f"{name} is no picture."]}


def test_the_pages_scripts_are_served_and_nothing_else(address):
    status, body = ask(f"{address}assets/{SCRIPTS[0]}", token="")
    assert (status, body.startswith(b"/* ")) == (200, True)
    assert ask(f"{address}assets/style.css", token="")[0] == 200
    for name in ("..%2Floom.py", "%2e%2e/loom.py", "loom.py"):
        assert ask(f"{address}assets/{name}", token="")[0] in (404, 200)
        assert b"import" not in ask(f"{address}assets/{name}", token="")[1]
