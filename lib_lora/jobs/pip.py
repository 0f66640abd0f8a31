"""Run pip, tell its steps and say why it failed. Of the standard library alone, since `loom.py` and `install.py` use it.

pip is called as it is set up on this machine: mirrors, proxies and constraints are its own business.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

# The lines of pip that say where it is.
STEP = re.compile("(Collecting|Downloading|Building|Installing) ")


def run(
    command: Sequence[str],
    tell: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run a program, tell its steps, and return its exit code and its lines; when stopped, stop it and its children first."""
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            for line in child.stdout or ():
                said.append(line.strip())
                if STEP.match(said[-1]):
                    tell(said[-1][:100])
        except BaseException:
            end(child)
            raise
    return child.returncode, said


def end(child: subprocess.Popen[str]) -> None:
    """Stop a program and, where the system knows process groups, all that it started."""
    if os.name == "nt":
        child.kill()
    else:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def reason_of(said: Sequence[str]) -> str:
    """Pick from pip's output which package it stopped at and why."""
    errors = [line[7:] for line in said if line.startswith("ERROR: ")]
    conflicts = [line for line in said if re.match("The user requested|.* depends on ", line)]
    retries = [line[9:] for line in said if line.startswith("WARNING: Retrying")]
    steps = [line for line in said if STEP.match(line)]
    reasons = [*errors, *conflicts, *retries[-1:]] or said[-3:]
    return "; ".join(reasons)[:1500] + (f" (at: {steps[-1][:200]})" if steps else "")
