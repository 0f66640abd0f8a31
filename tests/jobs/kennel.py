"""Workers that begin at once and break on purpose: `python -m tests.jobs.kennel` reads jobs as lines and forks a worker for each.

The libraries are imported once, before any fork. A line is {"run": folder, "fault": {...}, "report": file, "env": {...}}; the answer
is the worker's process number. A fault is one of

    {"put": n, "when": "before" | "after"}   dies at the n-th file that is put in place, before or after it has its name
    {"tear": n}                              dies in the middle of the n-th event
    {"full": n}                              has no room on the disk from the n-th write of any kind on

and the report, written when a worker ends by itself, counts the files that were put in place, the events and all writes.
"""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import lib_lora.train.training  # noqa: F401 - what a worker spends its first seconds on
from lib_lora.formats import place
from lib_lora.jobs import protocol, worker

PUT, EVENT, WRITE = "put", "event", "write"


class Faults:
    """Stands between a worker and its files."""

    def __init__(self, fault):
        self.fault, self.counts = fault, {PUT: 0, EVENT: 0, WRITE: 0}
        self.put_in_place, self.open_new = place.put_in_place, place.open_new

    def install(self):
        place.put_in_place, place.open_new = self.put, self.open
        faults, real = self, protocol.EventLog.__init__

        def with_faults(log, file):
            real(log, file)
            log._file = FaultyFile(log._file, faults)

        protocol.EventLog.__init__ = with_faults

    def put(self, partial, file):
        self.counts[PUT] += 1
        here = self.counts[PUT] == self.fault.get("put")
        if here and self.fault["when"] == "before":
            die()
        self.put_in_place(partial, file)
        if here:
            die()

    def open(self, partial):
        self.check_room(partial)
        return self.open_new(partial)

    def check_room(self, file=None):
        self.counts[WRITE] += 1
        if self.counts[WRITE] >= self.fault.get("full", sys.maxsize):
            if file is not None:
                file.touch()
            raise OSError(errno.ENOSPC, "No space left on device")


class FaultyFile:
    """The events' file, as the faults let it be written."""

    def __init__(self, file, faults):
        self.file, self.faults = file, faults
        self.close = file.close

    def write(self, data):
        self.faults.counts[EVENT] += 1
        if self.faults.counts[EVENT] == self.faults.fault.get("tear"):
            self.file.write(data[: len(data) // 2])
            die()
        self.faults.check_room()
        return self.file.write(data)


def die():
    """End as at a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)


def work(job):
    """Be the worker of a job."""
    os.setsid()
    run = Path(job["run"])
    os.chdir(run)
    if "env" in job:
        os.environ.clear()
        os.environ.update(job["env"])
    log = os.open(run / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    worker.LAST_WORD_SECONDS = 0.0
    faults = Faults(job.get("fault", {}))
    faults.install()
    code = worker.main([str(run)])
    if "report" in job:
        Path(job["report"]).write_text(json.dumps(faults.counts))
    return code


def main():
    """Fork a worker for each line until there are no more."""
    # Nobody waits for the workers, and none is to stay behind as a zombie, which would pass for one that is alive.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = work(json.loads(line))
            finally:
                os._exit(code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
