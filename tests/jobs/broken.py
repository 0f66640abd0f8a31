"""A small training whose worker is broken on purpose and resumed, and what it is to leave whatever happened: see `kennel`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lib_lora.jobs import client
from lib_lora.jobs.client import Run, create
from lib_lora.jobs.protocol import RunFolder
from tests.tiny import tiny_checkpoint
from tests.train.asked import asked_config
from tests.train.pictures import make_pictures

ROOT = Path(__file__).parents[2]
PATIENCE = 600
STEPS = 6
HOST = """
import sys, time
from pathlib import Path
from lib_lora.jobs.queue import Queue
queue = Queue(Path(sys.argv[1]), "the host")
while True:
    for run in queue.runs():
        if run.state().status == "dead":
            queue.command(run, "resume")
    queue.pump()
    time.sleep(0.1)
"""


class Kennel:
    """The process that forks workers."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.kennel"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def worker(self, run, fault=None, report=None):
        """Start a worker on a run and return its process."""
        job = {"run": str(run.folder), "fault": fault or {}}
        if report is not None:
            job["report"] = str(report)
        return self._fork(job)

    @contextlib.contextmanager
    def launches(self):
        """Let this process have its workers forked in the kennel, which have the libraries then, instead of started from nothing."""
        if os.name == "nt":  # which forks nothing
            yield
            return

        def popen(command, cwd, env, stdin, stdout, stderr, start_new_session):
            return Forked(self._fork({"run": command[-1], "env": env}))

        known = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "subprocess", known)
            yield

    def _fork(self, job):
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self):
        """End the process that forks; workers that are there go on."""
        self._process.stdin.close()
        self._process.wait()


class Forked:
    """A worker of the kennel as whoever launches it sees it."""

    def __init__(self, pid):
        self._pid = pid

    def poll(self):
        return None if psutil.pid_exists(self._pid) else 1

    def wait(self):
        gone(self._pid)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class Training:
    """The training, made anew for each run; `work` is what it reads."""

    def __init__(self, work):
        self._base = tiny_checkpoint(work)
        self._pictures = make_pictures(work / "pictures", count=2)

    def config(self, folder):
        """Return what a run in `folder` is asked: states, saves and samples at different steps, and companions."""
        sections = {
            "schedule": {"steps": STEPS, "batch": 1},
            "network": {"rank": 2, "alpha": 1.0},
            "loss": {"validation_draws": 2, "validation_every": 3},
            "saving": {"every": 3, "state_every": 2, "dtype": "fp32", "activation": "kaze"},
            "samples": {"prompts": "a circle", "every": 4, "steps": 1, "size": 64},
        }
        out = folder / "lora.safetensors"
        return asked_config(self._base, self._pictures, out, **sections).to_dict()

    def create(self, folder):
        """Return a new run in `folder`, which is its root too."""
        folder.mkdir(exist_ok=True)
        return create("train", self.config(folder), folder / "run")


def start_host(root):
    """Start a host that looks after the runs in `root`, in a process group of its own as a WebUI is."""
    return subprocess.Popen(
        [sys.executable, "-c", HOST, str(root)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def end_host(host):
    """Kill a host with its whole process group, as a terminal or a service manager does it."""
    os.killpg(host.pid, signal.SIGKILL)
    host.wait()


def left_by(run):
    """Return what a run has left for a person: path -> bytes."""
    folder = run.folder.parent
    parts = [folder / name for name in ("lora.safetensors", "lora.png", "lora.json")]
    parts += [*(run.folder / "saves").glob("*"), *(run.folder / "samples").glob("*")]
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in parts if p.exists()}
    found |= {p.name: b"" for p in folder.rglob("*.partial")}
    return found


def gone(pid):
    """Wait until a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENCE)


def finish(kennel, run):
    """Let a new worker go on with a run to its end, and return its state."""
    gone(kennel.worker(run))
    state = Run(run.folder).state()
    assert state.status == "done", (state.message, run.log_tail(40))
    return state


def events_whole(run):
    """Tell whether the events of a run are numbered without a gap and every line but torn ones is whole."""
    numbers = [event.seq for event in run.events()]
    return numbers == list(range(1, len(numbers) + 1)) and bool(
        RunFolder(run.folder).events.read_bytes().endswith(b"\n")
    )
