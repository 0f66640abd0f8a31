"""The WebUI that these tests speak to: a process of their own, or one that runs elsewhere, over its API."""

import datetime
import json
import os
from pathlib import Path

import pytest

from tests.real_host.models import NETWORKS, make_models, write_made
from tests.real_host.pictures import WebUI, over_http
from tests.real_host.process import DIR, PYTHON, HostProcess

URL, STOCK_URL = os.environ.get("LOOM_WEBUI_URL"), os.environ.get("LOOM_WEBUI_STOCK_URL")
LORA_DIR = os.environ.get("LOOM_WEBUI_LORA_DIR")
FIGURES = os.environ.get("LOOM_WEBUI_FIGURES")
MISSING = (
    "NOT TESTED IN A REAL WEBUI: set LOOM_WEBUI_DIR and LOOM_WEBUI_PYTHON to a checkout of AUTOMATIC1111 v1.10.1 and its interpreter;"
    " or, for the pictures alone, LOOM_WEBUI_URL to one that runs with --api, this extension and the embedded base model,"
    " LOOM_WEBUI_LORA_DIR to the folder of its LoRA, and LOOM_WEBUI_STOCK_URL to one without the extension"
)
OWN = bool(DIR and PYTHON)
HELD, FAILED = pytest.StashKey[dict](), pytest.StashKey[set]()
HERE = "tests/real_host/"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="session")
def start(request, tmp_path_factory):
    """Return a function that starts a WebUI with these flags, once for each set of them; of those with flags one at a time is kept."""
    if not OWN:
        pytest.skip(MISSING)
    models, running = request.getfixturevalue("models"), {}

    def once(*flags, extension=True):
        key = (flags, extension)
        if key not in running:
            for other in [other for other in running if flags and other[0]]:
                running.pop(other).close()
            folder = tmp_path_factory.mktemp("webui") / "data"
            running[key] = HostProcess(folder, models, *flags, extension=extension)
        return running[key]

    yield once
    for process in running.values():
        process.close()


@pytest.fixture(scope="session")
def host(start):
    return start()


@pytest.fixture(scope="session")
def webui(request):
    if OWN:
        return WebUI(request.getfixturevalue("start")().post)
    if not URL or not LORA_DIR:
        pytest.skip(MISSING)
    request.getfixturevalue("networks_there")
    return WebUI(over_http(URL))


@pytest.fixture(scope="session")
def stock(request):
    if OWN:
        return WebUI(request.getfixturevalue("start")(extension=False).post)
    if not URL or not STOCK_URL:
        pytest.skip(MISSING)
    return WebUI(over_http(STOCK_URL))


@pytest.fixture(scope="session")
def networks_there():
    """Keep the networks of these tests in the folder of a WebUI that runs elsewhere while they run."""
    files = {name: Path(LORA_DIR) / f"{name}.safetensors" for name in ("one", "two", "words")}
    for name, file in files.items():
        write_made(file, NETWORKS[name])
    yield
    for file in files.values():
        file.unlink()


@pytest.fixture
def figures(request):
    """Return a function that keeps a number, or some, for the report of the run."""
    own = request.config.stash[HELD].setdefault(request.node.nodeid, {})

    def keep(name, value):
        own[name] = [rounded(one) for one in value] if isinstance(value, tuple) else rounded(value)
        return value

    return keep


def rounded(value):
    return float(f"{value:.2g}") if isinstance(value, float) else value


def pytest_configure(config):
    config.stash[HELD], config.stash[FAILED] = {}, set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[HELD].setdefault(item.nodeid, {})
    if report.failed:
        item.config.stash[FAILED].add(item.nodeid)
    return report


def pytest_sessionfinish(session):
    """Write the tests that passed into the report, a line for each; what it holds of tests that were not run stays."""
    held, failed = (
        {name.removeprefix(HERE) for name in session.config.stash[key]} for key in (HELD, FAILED)
    )
    if not FIGURES or not held:
        return
    report = Path(FIGURES)
    tests = json.loads(report.read_text(encoding="utf-8"))["tests"] if report.exists() else {}
    tests |= {name: session.config.stash[HELD][HERE + name] for name in held}
    tests = {name: tests[name] for name in sorted(tests.keys() - failed)}
    head = {
        "webui": "AUTOMATIC1111 v1.10.1 (82a973c0), CPU, float32, the embedded base model",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in tests.items()]
    text = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
    body = ",\n".join(lines)
    report.write_text(f'{{\n{text} "tests": {{\n{body}\n }}\n}}\n', encoding="utf-8")


def pytest_terminal_summary(terminalreporter):
    if not OWN and not URL:
        terminalreporter.write_line(MISSING, yellow=True, bold=True)
