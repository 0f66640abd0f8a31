"""Runs with real workers: training to the end, commands, killing and resuming, and what is said when it goes wrong."""

import contextlib
import os

import psutil
import pytest

from lib_lora.errors import UsageError
from lib_lora.jobs.client import Run, latest, new_folder, resume, start
from lib_lora.jobs.protocol import RunFolder, write_json
from tests.tiny import tiny_checkpoint
from tests.train.asked import asked_config
from tests.train.pictures import make_pictures

PATIENCE = 600
# Enough that a worker is still at it when a test has seen an early step.
STEPS = 24


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A random base model and a folder of pictures."""
    folder = tmp_path_factory.mktemp("material")
    return tiny_checkpoint(folder), make_pictures(folder / "pictures")


def config_for(material, out, **sections):
    base, pictures = material
    few = {
        "network": {"rank": 2, "alpha": 1.0},
        "schedule": {"steps": STEPS, "batch": 1, "warmup": 1},
    }
    return asked_config(base, pictures, out, **{**few, **sections}).to_dict()


@pytest.fixture(scope="module")
def finished(material, tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("finished")
    config = config_for(material, folder / "lora.safetensors", saving={"state_every": 3})
    run = start("train", config, folder / "run")
    assert run.wait(PATIENCE).status == "done", run.log_tail()
    return run, folder / "lora.safetensors"


def wait_for_step(run, step):
    for event in run.follow():
        if event.kind == "step" and event.data["step"] >= step:
            return
    raise AssertionError(run.log_tail())


def test_a_run_tells_its_story(finished):
    run, out = finished
    kinds = [event.kind for event in run.events()]
    assert kinds[:2] == ["starting", "hello"]
    assert kinds[-1] == "done"
    assert kinds.count("step") == STEPS
    assert kinds.count("validation") == 2
    assert {"stage", "note", "saved"} <= set(kinds)
    assert [event.seq for event in run.events()] == list(range(1, len(kinds) + 1))
    assert run.events(after=3)[0].seq == 4
    state = run.state()
    assert (state.step, state.total, state.stage) == (0, 0, "saving")
    assert state.result["file"] == str(out)
    assert state.result["validation"].keys() == {"0", str(STEPS)}
    assert {
        "config.json",
        "run.json",
        "events.jsonl",
        "log.txt",
        "commands",
        "saves",
        "state",
    } == {path.name for path in run.folder.iterdir()}


def test_the_worker_ends_when_the_run_is_over(finished):
    run, _ = finished
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(run.state().pid).wait(PATIENCE)


def test_a_pause_is_answered_and_leaves_a_state(material, tmp_path):
    config = config_for(material, tmp_path / "lora.safetensors", saving={"state_every": 3})
    run = start("train", config, tmp_path / "run")
    wait_for_step(run, 2)
    asked = run.command("pause")
    assert run.wait(PATIENCE).status == "paused"
    answers = {e.data["id"]: e.data["result"] for e in run.events() if e.kind == "command"}
    assert answers[asked].startswith("Paused after step")
    assert list(RunFolder(run.folder).commands.iterdir()) == []
    with pytest.raises(UsageError, match="nothing to stop"):
        run.command("stop")
    assert not (tmp_path / "lora.safetensors").exists()
    assert len(list((run.folder / "state").iterdir())) == 1


def test_a_kind_that_is_not_known_fails_with_the_nearest(tmp_path):
    state = start("trian", {}, tmp_path / "run").wait(PATIENCE)
    assert state.message == "There is no work of kind 'trian'. Did you mean 'train'?"


def test_what_cannot_be_started_or_asked_is_refused(finished, tmp_path):
    run, _ = finished
    with pytest.raises(UsageError, match="holds a run already"):
        start("train", {}, run.folder)
    with pytest.raises(UsageError, match="Did you mean 'stop'"):
        run.command("stopp")
    with pytest.raises(UsageError, match="nothing to resume"):
        resume(run.folder)
    with pytest.raises(UsageError, match="holds no run"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("text", "kind", "config"),
    [
        ("{}", "", {}),
        ('{"kind": "train"}', "", {}),
        ('{"kind": "train", "config": []}', "", {}),
        ('{"kind": 5, "config": {"run": {"seed": 1}}}', "5", {"run": {"seed": 1}}),
        ('{"kind": "tr', "", {}),
        ("[" * 100_000, "", {}),
    ],
)
def test_what_was_asked_can_always_be_told(tmp_path, text, kind, config):
    """One folder with something else in it would keep the others from being listed."""
    (tmp_path / "config.json").write_text(text)
    assert Run(tmp_path).asked() == {"kind": kind, "config": config}


def test_a_process_that_took_a_dead_workers_number_is_not_the_worker(tmp_path):
    write_json(tmp_path / "config.json", {"kind": "train", "config": {}})
    (tmp_path / "log.txt").write_text("the last words\n")
    hello = {"v": 1, "seq": 1, "t": 0.0, "kind": "hello", "pid": os.getpid(), "started": "x"}
    (tmp_path / "events.jsonl").write_text(f"{hello}\n".replace("'", '"'))
    state = Run(tmp_path).state()
    assert state.status == "dead"
    assert "the last words" in state.message
    assert [event.kind for event in Run(tmp_path).follow()] == ["hello"]


def test_new_folders_and_the_latest(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        latest(tmp_path)
    first, second = (new_folder(tmp_path, "train") for _ in range(2))
    assert first != second
    write_json(second / "config.json", {})
    assert latest(tmp_path) == second
