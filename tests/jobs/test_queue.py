"""The queue on disk: order, one at a time, one owner, and what survives the end of a process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib_lora.errors import UsageError
from lib_lora.formats import place
from lib_lora.jobs import client
from lib_lora.jobs.client import Run, append_event
from lib_lora.jobs.owner import beginning
from lib_lora.jobs.protocol import RunFolder, pending_commands
from lib_lora.jobs.queue import Queue

ROOT = Path(__file__).parents[2]
PATIENCE = 60
# A worker knows no such work: it starts, says so and ends, which is all that a queue needs of it.
KIND = "rest"
OTHER = """
import sys
from pathlib import Path
from lib_lora.jobs.queue import Queue
queue = Queue(Path(sys.argv[1]), "the other")
for line in sys.stdin:
    asked = line.strip()
    print(queue.pump() if asked == "pump" else queue.add(asked, {}), flush=True)
"""


@pytest.fixture
def queue(tmp_path):
    return Queue(tmp_path / "runs", "me")


class Other:
    """A queue in a process of its own, which adds a run of the kind in each line, or pumps."""

    def __init__(self, root):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(root)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def add(self, kind):
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(queue):
    found = Other(queue.root)
    yield found
    found.kill()


@pytest.fixture
def sleeper():
    """A process that is there and says nothing; it plays a worker."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def play_worker(run, process):
    append_event(run, "hello", {"pid": process.pid, "started": beginning(process.pid)})


def status(run):
    return run.state().status


def test_runs_wait_in_their_order_and_one_is_at_work_at_a_time(queue, sleeper):
    assert queue.runs() == []
    assert queue.pump() is None
    first, second, third = (queue.add(KIND, {"n": n}) for n in range(3))
    assert queue.runs() == [third, second, first]
    assert [status(run) for run in (first, second, third)] == ["queued"] * 3
    assert first.asked() == {"kind": KIND, "config": {"n": 0}}
    play_worker(first, sleeper)
    assert status(first) == "starting"
    assert queue.pump() is None
    append_event(first, "stage", {"name": "training"})
    assert (status(first), queue.pump()) == ("running", None)
    append_event(first, "done")
    assert queue.pump() == second
    assert second.wait(PATIENCE).message.startswith(f"There is no work of kind '{KIND}'")
    assert (status(second), status(third)) == ("failed", "queued")
    assert queue.pump() == third
    third.wait(PATIENCE)
    assert queue.pump() is None


def test_what_is_queued_again_comes_after_what_waits(queue):
    first, second = queue.add(KIND, {}), queue.add(KIND, {})
    append_event(first, "paused", {"step": 5})
    assert queue.pump() == second
    second.wait(PATIENCE)
    third = queue.add(KIND, {})
    assert queue.command(first, "resume") == ""
    assert queue.command(first, "resume") == ""
    assert (status(first), first.state().result) == ("queued", {"step": 5})
    assert queue.pump() == third
    third.wait(PATIENCE)
    assert queue.pump() == first
    first.wait(PATIENCE)
    assert [e.kind for e in first.events()][:4] == ["paused", "queued", "starting", "hello"]


def test_the_queue_is_on_disk_and_a_new_process_goes_on(queue, other):
    other.add(KIND)
    (run,) = queue.runs()
    assert status(run) == "queued"
    other.kill()
    assert queue.pump() == run
    assert run.wait(PATIENCE).status == "failed"


def test_another_living_process_keeps_the_folder_and_is_named(queue, other):
    assert (queue.owner(), queue.read_only) == (None, False)
    other.add(KIND)
    (run,) = queue.runs()
    owner = queue.owner()
    assert (owner.name, owner.pid, owner.is_me) == ("the other", other.process.pid, False)
    assert queue.read_only
    assert queue.pump() is None
    for change in (lambda: queue.add(KIND, {}), lambda: queue.command(run, "delete")):
        with pytest.raises(UsageError, match=f"belong to the other \\(process {owner.pid}\\)"):
            change()
    assert status(run) == "queued"
    other.kill()
    assert not queue.read_only
    queue.command(run, "stop")
    assert queue.owner().is_me


def test_two_processes_that_pump_at_once_start_one_worker(queue, other):
    run = queue.add(KIND, {})
    for _ in range(3):
        other.process.stdin.write("pump\n")
    other.process.stdin.flush()
    queue.pump()
    assert [other.process.stdout.readline().strip() for _ in range(3)] == ["None"] * 3
    run.wait(PATIENCE)
    assert [e.kind for e in run.events()].count("hello") == 1


def test_commands_to_a_run_that_waits_or_is_over(queue, sleeper):
    run = queue.add(KIND, {})
    with pytest.raises(UsageError, match="is queued: there is nothing to save"):
        queue.command(run, "save")
    assert queue.command(run, "pause") == ""
    assert (status(run), run.state().result) == ("paused", {"step": 0})
    queue.command(run, "resume")
    queue.command(run, "stop")
    assert (status(run), queue.pump()) == ("stopped", None)
    with pytest.raises(UsageError, match="Did you mean 'resume'"):
        queue.command(run, "resum")
    play_worker(run, sleeper)
    asked = queue.command(run, "save")
    assert [c.id for c in pending_commands(RunFolder(run.folder))] == [asked]
    for wrong in ("resume", "delete"):
        with pytest.raises(UsageError, match="is starting"):
            queue.command(run, wrong)
    append_event(run, "done")
    with pytest.raises(UsageError, match="is done: there is nothing to resume"):
        queue.command(run, "resume")
    queue.command(run, "delete")
    assert queue.runs() == []
    assert not run.folder.exists()


def test_runs_are_found_by_name_and_stay_the_same_objects(queue):
    with pytest.raises(UsageError, match="It holds none"):
        queue.find("x")
    run = queue.add(KIND, {})
    assert queue.find(run.id) is run is queue.runs()[0]
    with pytest.raises(UsageError, match=f"Did you mean '{run.id}'"):
        queue.find(run.id + "x")


@pytest.mark.parametrize(
    ("executable", "said"),
    [
        ("/bin/false", "The worker did not start."),
        ("/nowhere/python", "The worker could not be started: [Errno 2] No such file"),
    ],
)
def test_a_worker_that_does_not_start_fails_its_run_and_the_next_one_comes(
    queue, monkeypatch, executable, said
):
    first, second = queue.add(KIND, {}), queue.add(KIND, {})
    with monkeypatch.context() as patch:
        patch.setattr(client.sys, "executable", executable)
        assert queue.pump() == first
    assert first.state().status == "failed"
    assert first.state().message.startswith(said)
    assert queue.pump() == second
    assert second.wait(PATIENCE).status == "failed"


def test_a_full_disk_fails_a_run_before_its_worker_starts(queue, monkeypatch):
    run = queue.add(KIND, {})
    monkeypatch.setattr(place, "SPARE_BYTES", 1 << 60)
    assert queue.pump() == run
    assert "MB are needed" in run.state().message
    assert [event.kind for event in run.events()] == ["failed"]


def test_a_launcher_that_was_killed_leaves_a_run_that_is_dead_after_a_while(queue, monkeypatch):
    run = queue.add(KIND, {})
    append_event(run, "starting", {"pid": os.getpid(), "started": "before this process"})
    assert status(run) == "starting"
    monkeypatch.setattr(client, "ORPHAN_SECONDS", 0.0)
    assert status(run) == "dead"
    assert "has not begun" in run.state().message
    queue.command(run, "resume")
    assert queue.pump() == run


def test_a_launcher_that_was_killed_before_the_clock_was_set_back_is_dead_too(queue):
    """A queue would stand still until the clock is where it was."""
    run = queue.add(KIND, {})
    dead = {"pid": os.getpid(), "started": "before this process"}
    told = {"v": 1, "seq": 1, "t": time.time() + 86_400, "kind": "starting", **dead}
    RunFolder(run.folder).events.write_text(json.dumps(told) + "\n")
    assert status(run) == "dead"


def test_a_worker_without_a_beat_is_silent_and_not_dead(queue, sleeper):
    run = queue.add(KIND, {})
    play_worker(run, sleeper)
    assert run.state().silent_since is None
    file = RunFolder(run.folder).events
    lines = file.read_text().splitlines()
    long_ago = time.time() - 31
    last = {"v": 1, "seq": len(lines) + 1, "t": long_ago, "kind": "beat"}
    file.write_text("\n".join([*lines, json.dumps(last)]) + "\n")
    state = Run(run.folder).state()
    assert (state.status, state.silent_since) == ("starting", long_ago)
    sleeper.kill()
    sleeper.wait()
    assert status(run) == "dead"


def test_commands_meant_for_an_earlier_worker_are_answered_and_later_ones_kept(queue, sleeper):
    run = queue.add(KIND, {})
    play_worker(run, sleeper)
    old = queue.command(run, "stop")
    sleeper.kill()
    sleeper.wait()
    queue.command(run, "resume")
    queue.pump()
    run.wait(PATIENCE)
    (answer,) = [e for e in run.events() if e.kind == "command"]
    assert (answer.data["id"], answer.data["result"][:8]) == (old, "Too late")
    assert pending_commands(RunFolder(run.folder)) == []


def test_a_second_worker_on_one_run_leaves_it_alone(queue, sleeper):
    run = queue.add(KIND, {})
    claim = {"name": "the worker", "pid": sleeper.pid, "started": beginning(sleeper.pid)}
    (run.folder / ".worker-000001.json").write_text(json.dumps(claim))
    queue.pump()
    assert "Another worker" in run.state().message
    assert "hello" not in [e.kind for e in run.events()]
