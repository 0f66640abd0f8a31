"""The jobs command: what it tells of runs, and what it asks of them."""

import json

import pytest

from lib_lora.cli.main import main
from lib_lora.jobs.client import append_event
from lib_lora.jobs.owner import this_process
from lib_lora.jobs.protocol import RunFolder, pending_commands
from lib_lora.jobs.queue import Queue

# A worker knows no such work: it starts, says so and ends.
KIND = "rest"


@pytest.fixture
def queue(tmp_path):
    return Queue(tmp_path / "runs", "a test")


@pytest.fixture
def jobs(queue, capsys):
    """Run the command on the queue's folder and return exit code, stdout and stderr."""

    def call(*arguments):
        code = main(["jobs", *arguments, "--root", str(queue.root)])
        return (code, *capsys.readouterr())

    return call


def begin(run):
    """Play a worker that has come to the third of ten steps."""
    me = this_process("")
    append_event(run, "hello", {"pid": me.pid, "started": me.started})
    append_event(run, "stage", {"name": "training", "total": 10})
    append_event(run, "step", {"step": 3, "total": 10, "loss": 0.5, "seconds_left": 7.0})
    append_event(run, "note", {"text": "Four pictures."})


def test_the_list_names_every_run_with_where_it_stands(queue, jobs):
    assert jobs("list") == (0, "There are no runs.\n", "")
    old, new = queue.add(KIND, {}), queue.add(KIND, {"a": 1})
    begin(old)
    code, out, _ = jobs("list")
    assert code == 0
    first, second = (line.split() for line in out.splitlines())
    assert first[:2] == [new.id, "queued"]
    assert second[:4] == [old.id, "running", "training", "3/10"]
    told = json.loads(jobs("list", "--json")[1])
    assert [(each["run"], each["status"], each["step"], each["kind"]) for each in told] == [
        (new.id, "queued", 0, KIND),
        (old.id, "running", 3, KIND),
    ]


def test_a_run_is_shown_with_its_configuration_notes_and_log(queue, jobs):
    run = queue.add(KIND, {"rank": 7})
    begin(run)
    RunFolder(run.folder).log.write_text("first line\nlast line\n")
    code, out, _ = jobs("show", "latest")
    assert code == 0
    assert all(part in out for part in ("running", '"rank": 7', "Four pictures.", "last line"))
    told = json.loads(jobs("show", run.id, "--json")[1])
    assert (told["config"], told["notes"]) == ({"rank": 7}, ["Four pictures."])
    assert (told["loss"], told["seconds_left"]) == (0.5, 7.0)
    assert told["log"].endswith("last line")


def test_stop_and_pause_are_asked_of_the_worker(queue, jobs):
    run = queue.add(KIND, {})
    begin(run)
    assert jobs("pause", "latest")[:2] == (0, f"{run.id} was asked to pause.\n")
    told = json.loads(jobs("stop", run.id, "--json")[1])
    asked = pending_commands(RunFolder(run.folder))
    assert [command.name for command in asked] == ["pause", "stop"]
    assert told["command"] == asked[1].id


def test_a_run_that_waits_is_paused_resumed_and_followed_to_its_end(queue, jobs):
    run = queue.add(KIND, {})
    assert jobs("pause", run.id)[:2] == (0, f"{run.id} is paused.\n")
    assert jobs("follow", run.id)[0] == 130
    assert jobs("resume", run.id)[0] == 0
    code, out, _ = jobs("follow", run.id)
    assert code == 1
    assert out.startswith(f"{run.id} is failed. There is no work of kind '{KIND}'")
    events = [json.loads(line) for line in jobs("follow", run.id, "--json")[1].splitlines()]
    assert [event["kind"] for event in events][:3] == ["paused", "queued", "starting"]
    assert events[-1]["message"].startswith("There is no work")


def test_clean_deletes_what_is_done_or_named_and_nothing_else(queue, jobs):
    done, failed, waiting = (queue.add(KIND, {}) for _ in range(3))
    append_event(done, "done")
    append_event(failed, "failed", {"message": "No."})
    assert jobs("clean")[:2] == (0, f"{done.id} is deleted.\n")
    assert queue.runs() == [waiting, failed]
    assert json.loads(jobs("clean", failed.id, "--json")[1]) == {"deleted": [failed.id]}
    assert queue.runs() == [waiting]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "takes one run"),
        (["stop", "nothing"], "There is no run 'nothing'"),
        (["halt"], "invalid choice"),
        (["resume", "latest"], "is running: there is nothing to resume"),
        (["clean", "latest"], "is running: stop it before it is deleted"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(queue, jobs, arguments, said):
    begin(queue.add(KIND, {}))
    code, out, err = jobs(*arguments)
    assert (code, out) == (2, "")
    assert said in err
