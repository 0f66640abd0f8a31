import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lib_lora.cli.demo import outcome
from lib_lora.cli.main import main
from lib_lora.demo.report import Concept, Difference, Likeness, Report, ValidationLoss
from lib_lora.formats.header import read_header

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300

REPORT = Report(
    data="bundled",
    seed=0,
    seconds={"total": 200.0},
    peak_memory_bytes=10**9,
    validation_loss={"donut": ValidationLoss(0.4, 0.2)},
    concept=Concept(
        measure="hole share",
        threshold=0.1,
        prompts=["a donut"] * 16,
        seeds=[0] * 16,
        without=[0.0] * 16,
        having=[0.3] * 16,
    ),
    likeness=None,
    merged_versus_live=Difference(0.1, 3),
    sha256={},
)


def test_figures_that_hold_are_a_success():
    assert outcome(REPORT) == (0, [])


def test_a_missed_figure_of_the_bundled_pictures_is_a_failure_that_names_it():
    code, sentences = outcome(replace(REPORT, merged_versus_live=Difference(2.5, 9)))
    assert code == 1
    assert "2.50 of 255" in sentences[0]


def test_a_missed_figure_of_own_pictures_is_a_warning():
    own = replace(REPORT, data="cats", concept=None, likeness=Likeness(0.4, 0.5))
    code, sentences = outcome(own)
    assert code == 0
    assert sentences[0].startswith("Warning: Pictures with the LoRA are 0.500")


@pytest.mark.parametrize("content", [{}, {"a.png": b"no picture"}], ids=["empty", "unreadable"])
def test_a_folder_without_a_picture_is_one_sentence(tmp_path, capsys, content):
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    assert main(["demo", "--out", str(tmp_path / "out"), "--data", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "picture" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another signal there")
def test_ctrl_c_in_the_middle_of_training_stops_everything(tmp_path):
    """A real SIGINT, after a start that ignores it: exit code 130, the worker gone, no file that is not whole."""
    out = tmp_path / "out"
    demo = subprocess.Popen(
        [sys.executable, "-m", "lib_lora.cli.main", "demo", "--out", str(out)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # As a script does with a command that it starts in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    worker = wait_for_a_step(out, demo)
    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert "Traceback" not in told
    assert is_gone_soon(worker)
    names = [file.name for file in out.rglob("*")]
    assert "report.json" not in names
    assert not [name for name in names if "part" in name or "tmp" in name]
    for file in out.rglob("*.safetensors"):
        assert read_header(file).tensors


def is_gone_soon(pid):
    """Tell whether a process ends by itself within a minute: a worker tells its ending before it leaves."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def wait_for_a_step(out, demo):
    """Return the worker's process id once it has taken a step."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert demo.poll() is None, demo.stderr.read()
        for file in out.glob("runs/*/events.jsonl"):
            events = [json.loads(line) for line in file.read_text().splitlines(keepends=True)[:-1]]
            if any(event["kind"] == "step" for event in events):
                return next(event["pid"] for event in events if event["kind"] == "hello")
        time.sleep(0.2)
    raise AssertionError("The training took no step in time.")
