"""The owner of a folder: one at a time, found dead by what it is and not by its number alone."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lib_lora.jobs import owner
from lib_lora.jobs.owner import Owner, beginning, is_running, owner_of, release, take

ROOT = Path(__file__).parents[2]
TAKE = """
import sys, time
from pathlib import Path
from lib_lora.jobs.owner import take
owner = take(Path(sys.argv[1]), "queue", "other")
print(owner.pid if owner.is_me else 0, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def taker(tmp_path):
    """Start processes that take the folder and stay; ended with the test."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", TAKE, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_free_folder_is_taken_once_and_stays_mine(tmp_path):
    assert owner_of(tmp_path, "queue") is None
    first = take(tmp_path, "queue", "me")
    assert first == take(tmp_path, "queue", "me again") == owner_of(tmp_path, "queue")
    assert (first.name, first.pid, first.is_me) == ("me", os.getpid(), True)
    assert owner_of(tmp_path, "worker") is None


def test_a_living_owner_is_named_and_a_dead_one_is_followed(tmp_path, taker):
    other = taker()
    assert int(other.stdout.readline()) == other.pid
    found = take(tmp_path, "queue", "me")
    assert (found.name, found.pid, found.is_me) == ("other", other.pid, False)
    other.kill()
    other.wait()
    assert owner_of(tmp_path, "queue") is None
    assert take(tmp_path, "queue", "me").is_me
    assert files(tmp_path) == [".queue-000002.json"]


def test_a_folder_is_let_go_by_its_owner_alone(tmp_path, taker):
    take(tmp_path, "queue", "me")
    release(tmp_path, "queue")
    assert files(tmp_path) == []
    other = taker()
    other.stdout.readline()
    release(tmp_path, "queue")
    assert owner_of(tmp_path, "queue").pid == other.pid


def test_of_many_who_take_at_once_one_wins(tmp_path, taker):
    Path(tmp_path / ".queue-000007.json").write_text(
        json.dumps({"name": "dead", "pid": os.getpid(), "started": "long ago"})
    )
    others = [taker() for _ in range(4)]
    won = [pid for other in others if (pid := int(other.stdout.readline()))]
    assert len(won) == 1
    assert owner_of(tmp_path, "queue").pid == won[0]
    assert files(tmp_path) == [".queue-000008.json"]


def test_threads_of_one_process_are_one_owner(tmp_path):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(take(tmp_path, "queue", "me")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"name": "x"}', '{"name": 1, "pid": "y"}'])
def test_an_owner_who_died_while_it_wrote_is_followed(tmp_path, monkeypatch, torn):
    monkeypatch.setattr(owner, "TORN_SECONDS", 0.1)
    (tmp_path / ".queue-000003.json").write_text(torn)
    assert take(tmp_path, "queue", "me").is_me


def test_a_number_given_to_another_process_is_another_process():
    assert is_running(os.getpid(), beginning(os.getpid()))
    assert not is_running(os.getpid(), "at another time")
    child = subprocess.Popen([sys.executable, "-c", ""])
    began = beginning(child.pid)
    child.wait()
    assert not is_running(child.pid, began)
    assert not Owner("x", child.pid, began).is_alive
