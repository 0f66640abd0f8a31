"""The train command: exit codes, Ctrl-C in a real terminal's manner, and resuming."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lib_lora.cli.main import main
from lib_lora.formats.header import read_header
from lib_lora.jobs.client import Run, run_folders
from tests.tiny import CONFIG, tiny_checkpoint
from tests.train.pictures import make_pictures

ROOT = Path(__file__).parents[2]
PATIENCE = 600
SMALL = (
    *("--set", f"model.config={CONFIG}", "--set", "data.size=64", "--set", "network.rank=2"),
    *("--set", "run.threads=1", "--set", "run.device=cpu", "--set", "loss.validation_draws=2"),
)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    return str(tiny_checkpoint(folder)), str(make_pictures(folder / "pictures"))


def small_training(material):
    """Return the arguments of a small training whose files all go to the working directory."""
    base, data = material
    return ["train", "--base", base, "--data", data, "--out", "lora.safetensors", *SMALL]


@pytest.fixture
def arguments(material, tmp_path, monkeypatch):
    """The arguments of a small training whose files all go to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return small_training(material)


@pytest.fixture(scope="module")
def failed(material, tmp_path_factory, kennel):
    """A training from a preset that fails, for want of pictures: its exit code, its folder and what it said."""
    folder, said = tmp_path_factory.mktemp("failed"), io.StringIO()
    (folder / "empty").mkdir()
    more = ["--preset", "quick", "--data", "empty", "--set", "optimizer.unet_rate=2e-4"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.chdir(folder)
        with kennel.launches():
            code = main([*small_training(material), *more])
    return code, folder, said.getvalue()


def test_a_training_prints_the_file_and_options_win_over_the_configuration(
    arguments, material, tmp_path, capsys, kennel
):
    config = {
        "model": {"base": "nowhere.safetensors", "config": str(CONFIG)},
        "schedule": {"steps": 500},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with kennel.launches():
        assert main(["train", "config.json", *arguments[1:], "--set", "schedule.steps=2"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'lora.safetensors'}\n"
    assert "2/2  loss " in err
    assert read_header(tmp_path / "lora.safetensors").metadata["ss_steps"] == "2"
    (run,) = run_folders(tmp_path / "runs")
    assert Run(run).state().status == "done"
    asked = json.loads((run / "config.json").read_text())["config"]
    assert (asked["schedule"]["steps"], asked["model"]["base"]) == (2, material[0])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "schedule.stepps=1"], "Did you mean 'steps'?"),
        (["--set", "steps=1"], "section.key=value"),
        (["--resume", "latest"], "takes no other setting"),
        (["nowhere.json"], "cannot be read as JSON"),
        (["--preset", "styl"], "Did you mean 'style'?"),
        (["--preset", "style", "--resume", "latest"], "takes no other setting"),
    ],
)
def test_wrong_usage_is_2_and_starts_nothing(arguments, tmp_path, capsys, more, said):
    assert main([*arguments, *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_preset_lies_beneath_what_is_set(failed):
    _, folder, _ = failed
    (run,) = run_folders(folder / "runs")
    asked = json.loads((run / "config.json").read_text())["config"]
    assert (asked["network"]["rank"], asked["network"]["alpha"]) == (2, 8.0)
    assert (asked["schedule"]["decay"], asked["schedule"]["steps"]) == ("constant", 300)
    assert (asked["optimizer"]["unet_rate"], asked["data"]["size"]) == (2e-4, 64)


def test_all_that_is_missing_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 2
    err = capsys.readouterr().err
    assert all(name in err for name in ("model.base", "data.folder", "saving.out"))


def test_a_failed_training_is_1_with_one_sentence_and_a_traceback_in_the_log(failed):
    code, folder, said = failed
    assert code == 1
    assert said.splitlines()[-1] == f"{folder / 'empty'} holds no picture."
    (run,) = run_folders(folder / "runs")
    assert Run(run).state().status == "failed"
    assert "Traceback" in (run / "log.txt").read_text()
    assert not (folder / "lora.safetensors").exists()


@pytest.mark.skipif(os.name == "nt", reason="sends the signal of Ctrl-C in the manner of POSIX")
def test_ctrl_c_stops_with_130_saves_and_can_be_resumed(arguments, tmp_path, kennel):
    command = [sys.executable, "-m", "lib_lora.cli.main", *arguments, "--set", "schedule.steps=30"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def hear_signals():
        # A test run in the background ignores Ctrl-C, and its children would too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=hear_signals
    ) as process:

        def wait_until(reached):
            end = time.monotonic() + PATIENCE
            while not reached():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.05)

        wait_until(
            lambda: any(
                '"step": 1, ' in f.read_text() for f in tmp_path.glob("runs/*/events.jsonl")
            )
        )
        # The worker stands still until it was asked to stop: however slow the machine, steps are left.
        (run,) = run_folders(tmp_path / "runs")
        worker = psutil.Process(Run(run).state().pid)
        worker.suspend()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: any((run / "commands").iterdir()))
        worker.resume()
        err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert "Stopped after step" in err
    assert f"--resume {run}" in err
    assert not (tmp_path / "lora.safetensors").exists()
    assert len(list((run / "saves").glob("*.safetensors"))) == 1
    assert list(tmp_path.rglob("*.partial")) == []
    with kennel.launches():
        assert main(["train", "--resume", "latest"]) == 0
    assert read_header(tmp_path / "lora.safetensors").metadata["ss_steps"] == "30"
