"""What the page is told of a run: figures, losses, samples, and only what is new."""

import json

import pytest

from lib_lora.jobs.client import create
from lib_lora.jobs.protocol import EventLog, RunFolder, send_command
from lib_lora.ui.run_view import Watched, list_entry, run_view, sample_file, thinned


@pytest.fixture
def run(tmp_path):
    config = {"saving": {"out": "/x/cat.safetensors"}, "schedule": {"steps": 40}}
    return create(
        "train", {**config, "data": {"caption": "a cat"}}, tmp_path / "20260102-030405-train"
    )


def write(run, *events):
    log = EventLog(RunFolder(run.folder).events)
    for kind, data in events:
        log.write(kind, data)
    log.close()


def step(number, loss=0.5):
    return "step", {"step": number, "total": 40, "loss": loss, "seconds_left": 9.0}


def view(run, after=0, **options):
    return run_view(Watched(run), run.state(), after, options.get("read_only", False))


def test_a_run_is_called_by_its_lora_and_its_time(run):
    entry = list_entry(run, run.state())
    assert (entry["name"], entry["when"], entry["status"]) == ("cat", "02 Jan, 03:04", "queued")


def test_losses_come_once_and_then_only_the_new_ones(run):
    write(run, step(1, 0.9), step(2, 0.8), ("validation", {"step": 2, "loss": 0.7}))
    first = view(run)
    assert first["fresh"]
    assert first["points"] == [(1, 0.9), (2, 0.8)]
    assert first["validation"] == [(2, 0.7)]
    write(run, step(3, 0.6))
    then = view(run, first["seq"])
    assert (then["fresh"], then["points"], then["validation"]) == (False, [(3, 0.6)], [])
    assert view(run, then["seq"])["points"] == []


def test_a_resumed_run_takes_its_steps_up_again(run):
    write(run, step(1, 0.9), step(2, 0.8), step(3, 0.7), step(2, 0.1))
    assert view(run)["points"] == [(1, 0.9), (2, 0.1)]


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_leaves_the_view_readable(run, lost):
    """JSON has no word for it: the answer to the page would fail, again at every question."""
    write(run, step(1, 0.9), step(2, lost), ("validation", {"step": 2, "loss": lost}))
    told = view(run)
    assert (told["points"], told["validation"]) == ([(1, 0.9)], [])
    json.dumps(told, allow_nan=False)


def test_a_long_run_is_thinned_to_means():
    points = [(number, float(number % 2)) for number in range(1, 3001)]
    few = thinned(points, 1500)
    assert len(few) == 1500
    assert few[0] == (2, 0.5)
    assert thinned(points[:7], 1500) == points[:7]
    assert thinned([], 1500) == []


def test_speed_and_time_come_from_the_workers_own_clock(run):
    watched = Watched(run)
    write(run, ("hello", {}), *(step(number) for number in range(1, 4)))
    figures = watched.figures()
    assert figures["done_steps"] == 3
    assert 0 <= figures["spent"] < 5
    write(run, ("pace", {"steps_per_epoch": 12, "total": 40, "sentence": "Slow: a CPU."}))
    figures = watched.figures()
    assert (figures["epoch"], figures["epochs"]) == (1, 4)
    assert figures["pace"]["sentence"] == "Slow: a CPU."
    write(run, step(13))
    assert watched.figures()["epoch"] == 2


def test_a_finished_run_tells_its_file_and_the_words_that_call_it(run):
    write(run, ("hello", {}), step(40), ("done", {"file": "/x/cat.safetensors", "step": 40}))
    told = view(run)
    assert told["result"] == {"file": "/x/cat.safetensors", "name": "cat", "trigger": "a cat"}
    assert (told["status"], told["commands"], told["active"]) == ("done", ["remove"], False)


def test_a_stopped_run_tells_what_it_saved_and_what_it_answered(run):
    saved = ("saved", {"file": "/r/saves/cat-000020.safetensors", "step": 20})
    told = ("command", {"id": "1", "command": "stop", "result": "Saved it after step 20."})
    write(run, ("hello", {}), step(20), saved, told)
    assert view(run)["result"] is None
    write(run, ("stopped", {"step": 20}))
    shown = view(run)
    assert shown["result"]["name"] == "cat-000020"
    assert shown["answer"] == "Saved it after step 20."


def test_the_activation_text_goes_before_the_caption(tmp_path):
    config = {
        "saving": {"out": "/x/cat.safetensors", "activation": "zwx"},
        "data": {"caption": "a"},
    }
    run = create("train", config, tmp_path / "run")
    write(run, ("done", {"file": "/x/cat.safetensors"}))
    assert view(run)["result"]["trigger"] == "zwx"


def test_what_is_asked_of_a_run_shows_until_it_is_answered(run):
    send_command(RunFolder(run.folder), "save")
    assert view(run)["pending"] == "save"
    watched = view(run, read_only=True)
    assert (watched["pending"], watched["commands"]) == (None, [])


def test_samples_are_those_of_the_run_and_nothing_else(run):
    samples = RunFolder(run.folder).samples
    samples.mkdir()
    (samples / "one.png").touch()
    (run.folder / "secret.png").touch()
    (samples / "link.png").symlink_to(run.folder / "secret.png")
    assert sample_file(run, "one.png") == (samples / "one.png").resolve()
    for name in ("../secret.png", "../config.json", "link.png", "none.png", ".", "/etc/hosts"):
        assert sample_file(run, name) is None
    write(run, ("sample", {"file": str(samples / "one.png"), "step": 5, "prompt": "<b>"}))
    assert view(run)["samples"] == [{"name": "one.png", "step": 5, "prompt": "<b>"}]
