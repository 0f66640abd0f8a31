"""Runs that are broken on purpose, at every file and at random moments, and go on: what they leave is the same bytes."""

import json
import os
import random
import signal
import time

import pytest

from lib_lora.jobs.client import Run
from lib_lora.jobs.protocol import EventLog, RunFolder
from lib_lora.jobs.queue import Queue
from tests.jobs.broken import (
    STEPS,
    Training,
    end_host,
    events_whole,
    finish,
    gone,
    left_by,
    start_host,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forks and kills as POSIX does")
PATIENCE = 600
SEED = 20261130


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return Training(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def whole(kennel, training, tmp_path_factory):
    """What a run leaves that nothing happens to, what it counted, and how long its worker took."""
    folder = tmp_path_factory.mktemp("whole")
    run = training.create(folder)
    begin = time.monotonic()
    gone(kennel.worker(run, report=folder / "counts.json"))
    seconds = time.monotonic() - begin
    assert run.state().status == "done", run.log_tail(40)
    return left_by(run), json.loads((folder / "counts.json").read_text()), seconds


def test_a_run_leaves_what_the_faults_are_to_leave(whole):
    left, counts, _ = whole
    saves = {"run/saves/lora-000003.safetensors", "run/samples/000004-00.png"}
    assert {*saves, "run/samples/000006-00.png"} < left.keys()
    assert {"lora.safetensors", "lora.png", "lora.json"} < left.keys()
    # run.json, states after 2 and 4, a save, two samples, the file and the two beside it.
    assert counts["put"] == 9


def test_killed_at_every_file_and_resumed_leaves_the_same(kennel, training, whole, tmp_path):
    left, counts, _ = whole
    for number in range(1, counts["put"] + 1):
        run = training.create(tmp_path / str(number))
        fault = {"put": number, "when": "before" if number % 2 else "after"}
        gone(kennel.worker(run, fault))
        assert run.state().status == "dead", fault
        finish(kennel, run)
        assert left_by(run) == left, fault
        assert events_whole(run), fault


def test_a_torn_event_is_passed_over(kennel, training, whole, tmp_path):
    left, counts, _ = whole
    run = training.create(tmp_path)
    for number in (1, counts["event"] // 2):
        gone(kennel.worker(run, {"tear": number}))
        assert run.state().status == ("queued" if number == 1 else "dead")
    log = EventLog(RunFolder(run.folder).events)
    log.write("from a later version", {"status": "done"})
    log.close()
    (RunFolder(run.folder).commands / "torn.json").write_text('{"comm')
    finish(kennel, run)
    assert left_by(run) == left
    answers = [event.data["result"] for event in run.events() if event.kind == "command"]
    assert [answer[:15] for answer in answers] == ["Not understood."]


def test_a_disk_that_fills_up_at_any_write_ends_calmly(kennel, training, whole, tmp_path):
    left, counts, _ = whole
    for number in (1, counts["write"] // 2, counts["write"] - 4):
        run = training.create(tmp_path / str(number))
        gone(kennel.worker(run, {"full": number}))
        assert run.state().status in ("queued", "dead", "paused", "failed"), run.log_tail()
        assert left_by(run).items() <= left.items(), number
        finish(kennel, run)
        assert left_by(run) == left, number


def test_killed_at_random_moments_and_resumed_leaves_the_same(kennel, training, whole, tmp_path):
    left, _, seconds = whole
    run, moments = training.create(tmp_path), random.Random(SEED)
    for _ in range(3):
        pid = kennel.worker(run)
        time.sleep(moments.uniform(0, seconds))
        if Run(run.folder).state().over:
            break
        os.kill(pid, signal.SIGKILL)
        gone(pid)
    if run.state().status != "done":
        finish(kennel, run)
    assert left_by(run) == left, SEED


def test_a_killed_host_leaves_its_run_at_work_and_the_next_one_goes_on(training, whole, tmp_path):
    run = training.create(tmp_path)
    host = start_host(tmp_path)
    wait_for_step(run, 1)
    assert Queue(tmp_path).owner().name == "the host"
    end_host(host)
    assert Queue(tmp_path).owner() is None
    assert run.state().at_work
    wait_for_step(run, 2)
    os.kill(run.state().pid, signal.SIGKILL)
    assert run.wait(PATIENCE).status == "dead"
    host = start_host(tmp_path)
    while (state := run.state()).status != "done":
        assert state.status not in ("failed", "stopped"), run.log_tail(40)
        time.sleep(0.2)
    end_host(host)
    assert [event.kind for event in run.events()].count("hello") == 2
    assert state.result["step"] == STEPS
    assert left_by(run) == whole[0]


def wait_for_step(run, step):
    """Wait until a step is done; the run may still be in the queue."""
    for event in run.follow():
        if event.kind == "step" and event.data["step"] >= step:
            return
    raise AssertionError(run.log_tail(40))
