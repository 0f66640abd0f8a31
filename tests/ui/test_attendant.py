"""Who looks after the runs when nobody looks: workers started, the GPU lent and given back, what is finished made known."""

import pytest

from lib_lora.jobs.client import append_event
from lib_lora.jobs.queue import Queue
from lib_lora.ui import attendant as attending
from lib_lora.ui.attendant import Attendant, will_be_delivered
from tests.ui.hosts import FolderHost


class Pumped(Queue):
    """The queue, whose workers are events that the test writes."""

    def pump(self):
        waiting = [run for run in self.runs() if run.state().status == "queued"]
        if waiting:
            append_event(waiting[-1], "paused")
        return waiting[-1] if waiting else None


@pytest.fixture
def host(tmp_path):
    return FolderHost(tmp_path, tmp_path / "base.safetensors")


def queued(queue, host, name="cat"):
    out = host.network_folder() / f"{name}.safetensors"
    run = queue.add("train", {"saving": {"out": str(out)}})
    will_be_delivered(run)
    return run, out


def test_the_gpu_is_lent_while_runs_wait_or_work_and_comes_back_once(tmp_path, host):
    queue = Pumped(tmp_path / "runs")
    attendant = Attendant(lambda: (host, queue))
    attendant.attend()
    # A run that was at work when the host began may be over by now.
    assert host.asked == ["restore"]
    queued(queue, host)
    attendant.attend()
    attendant.attend()
    attendant.attend()
    assert host.asked == ["restore", "release", "restore"]


def test_a_new_process_takes_up_what_the_one_before_left(tmp_path, host):
    queue = Pumped(tmp_path / "runs")
    queued(queue, host)
    Attendant(lambda: (host, queue)).attend()
    host.asked.clear()
    queued(queue, host, "dog")
    attendant = Attendant(lambda: (host, queue))
    attendant.attend()
    attendant.attend()
    assert host.asked == ["release", "restore"]


def test_what_is_finished_is_made_known_once(tmp_path, host):
    queue = Pumped(tmp_path / "runs")
    run, out = queued(queue, host)
    append_event(run, "done", {"file": str(out)})
    attendant = Attendant(lambda: (host, queue))
    attendant.attend()
    attendant.attend()
    assert host.asked == ["cat.safetensors", "restore"]


def test_a_stopped_run_makes_known_what_it_saved_and_later_what_it_became(tmp_path, host):
    queue = Pumped(tmp_path / "runs")
    run, out = queued(queue, host)
    attendant = Attendant(lambda: (host, queue))
    append_event(run, "stopped", {"step": 0})
    attendant.attend()
    assert host.asked == ["restore"]
    append_event(run, "saved", {"file": str(run.folder / "saves" / "cat-000020.safetensors")})
    append_event(run, "stopped", {"step": 20})
    attendant.attend()
    attendant.attend()
    append_event(run, "done", {"file": str(out)})
    attendant.attend()
    attendant.attend()
    assert host.asked == ["restore", "cat-000020.safetensors", "cat.safetensors"]


def test_a_run_that_the_page_did_not_make_is_left_alone(tmp_path, host):
    queue = Pumped(tmp_path / "runs")
    run = queue.add("train", {"saving": {"out": "/x.safetensors"}})
    append_event(run, "done", {"file": "/x.safetensors"})
    Attendant(lambda: (host, queue)).attend()
    assert "x.safetensors" not in host.asked


def test_an_unforeseen_error_does_not_end_the_thread(tmp_path, host, monkeypatch):
    monkeypatch.setattr(attending, "SECONDS", 0.01)
    queue, tries = Pumped(tmp_path / "runs"), []

    def runs():
        tries.append(1)
        raise RuntimeError("broken")

    monkeypatch.setattr(queue, "runs", runs)
    attendant = Attendant(lambda: (host, queue))
    attendant.start()
    for _ in range(300):
        if len(tries) > 2:
            break
        attendant._over.wait(0.01)
    attendant.close()
    assert len(tries) > 2
