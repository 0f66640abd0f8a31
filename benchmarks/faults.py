"""Runs that are broken in every way there is, and whether what they leave in the end is the same bytes.

Run as `python3 -m benchmarks.faults [--seed N] [--kills N]`. A small training is killed before and after each file it puts in place and
in the middle of each event, finds the disk full at each write it makes, and, with a real host, is killed at random moments together
with the host or without it. Prints one line of JSON for each; the exit code is 1 when one of them left anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lib_lora.jobs.client import Run
from tests.jobs.broken import (
    Kennel,
    Training,
    end_host,
    events_whole,
    finish,
    gone,
    left_by,
    start_host,
)

Left = dict[str, bytes]


def main(arguments: list[str]) -> int:
    """Break runs in every way and return 0 when all of them left the same."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.faults")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--kills", type=int, default=20, help="at random moments")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        return 0 if break_all(Path(name), asked.seed, asked.kills) else 1


def break_all(folder: Path, seed: int, kills: int) -> bool:
    """Break runs in a folder in every way, tell each, and return whether all of them left the same."""
    training, kennel = Training(folder), Kennel()
    run = training.create(folder / "whole")
    report = folder / "counts.json"
    gone(kennel.worker(run, report=report))
    whole, counts = left_by(run), json.loads(report.read_text())

    def breaks(fault: dict[str, object]) -> bool:
        broken = training.create(folder / "-".join(f"{key}-{fault[key]}" for key in fault))
        gone(kennel.worker(broken, fault))
        finish(kennel, broken)
        return left_by(broken) == whole and events_whole(broken)

    sides = ("before", "after")
    puts = [{"put": n, "when": w} for n in range(1, counts["put"] + 1) for w in sides]
    fine = [
        tell("killed at a file", puts, breaks),
        tell("killed in an event", [{"tear": n} for n in range(1, counts["event"] + 1)], breaks),
        tell("full from a write on", [{"full": n} for n in range(1, counts["write"] + 1)], breaks),
    ]
    kennel.close()
    return all(fine) and killed_at_random(training, folder, whole, seed, kills)


def tell(
    name: str, faults: list[dict[str, object]], breaks: Callable[[dict[str, object]], bool]
) -> bool:
    """Break a run by each fault, tell how many left the same, and return whether all did."""
    other = [fault for fault in faults if not breaks(fault)]
    said = {"what": name, "runs": len(faults), "same": len(faults) - len(other), "other": other}
    print(json.dumps(said), flush=True)
    return not other


def killed_at_random(training: Training, folder: Path, whole: Left, seed: int, kills: int) -> bool:
    """Kill hosts and workers at random moments, tell it, and return whether every run left the same."""
    moments, runs, same, hosts, workers = random.Random(seed), 0, 0, 0, 0
    begin = time.monotonic()
    run, host = _begin(training, folder / "random-0")
    _await_end(run)
    end_host(host)
    length = time.monotonic() - begin
    while hosts + workers < kills:
        runs += 1
        run, host = _begin(training, folder / f"random-{runs}")
        for _ in range(2):
            time.sleep(moments.uniform(0.0, length))
            state, of_host = run.state(), moments.random() < 0.5
            if of_host and not state.over:
                end_host(host)
                host, hosts = start_host(run.folder.parent), hosts + 1
            elif state.at_work and state.pid is not None:
                os.kill(state.pid, signal.SIGKILL)
                workers += 1
        _await_end(run)
        end_host(host)
        same += left_by(run) == whole
    said = {"what": "killed at random", "seed": seed, "hosts": hosts, "workers": workers}
    print(json.dumps({**said, "runs": runs, "same": same}), flush=True)
    return same == runs


def _begin(training: Training, folder: Path) -> tuple[Run, subprocess.Popen[bytes]]:
    run = training.create(folder)
    return run, start_host(folder)


def _await_end(run: Run) -> None:
    while (state := run.state()).status != "done":
        if state.status in ("failed", "stopped"):
            raise SystemExit(f"{state.message}\n{run.log_tail(40)}")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
