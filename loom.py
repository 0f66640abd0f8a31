#!/usr/bin/env python3
"""Start LoRA Loom: make `.venv` beside this file, install the pinned requirements in it, run the command in it.

Python's standard library only, 3.10 to 3.13. pip is called as it is set up on this machine: mirrors, proxies and constraints are
its own business. An environment that is not finished carries a marker and is removed, whoever finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib_lora.jobs.pip import reason_of, run

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
UNFINISHED = VENV / "loom.unfinished"
VERSIONS = ((3, 10), (3, 13))

# The lists of requirements that each kind of command needs; the later one of a pair includes the earlier.
RUN, TEST = ("standalone.txt",), ("standalone.txt", "test.txt")


class SetupError(Exception):
    """The environment cannot be made; the text is one plain sentence."""


def stamp_file(lists: Sequence[str]) -> Path:
    """Return the file that says which version of these lists is installed."""
    return VENV / f"loom.{Path(lists[-1]).stem}"


def fingerprint(lists: Sequence[str]) -> str:
    """Return a hash of the lists, so that any change of a pin is noticed."""
    digest = hashlib.sha256()
    for name in lists:
        digest.update((ROOT / "requirements" / name).read_bytes())
    return digest.hexdigest()


def is_ready(lists: Sequence[str]) -> bool:
    """Tell whether the environment is finished and holds exactly these lists."""
    stamp = stamp_file(lists)
    return (
        PYTHON.exists()
        and not UNFINISHED.exists()
        and stamp.is_file()
        and stamp.read_text() == fingerprint(lists)
        and not is_left_behind()
    )


def is_left_behind() -> bool:
    """Tell whether the interpreter behind the environment has become another version, as when the system is upgraded.

    Packages lie in a folder that is named by the version. It is seen where that interpreter is the one that asks.
    """
    told = re.search(r"^version *= *(\d+)\.(\d+)", (VENV / "pyvenv.cfg").read_text(), re.MULTILINE)
    same = PYTHON.resolve() == Path(sys.executable).resolve()
    return same and told is not None and (int(told[1]), int(told[2])) != sys.version_info[:2]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let one process at a time set up. Windows has no `fcntl`; there nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with Path(__file__).open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def set_up(lists: Sequence[str]) -> None:
    """Make the environment hold these lists; on any failure none is left that is not whole."""
    with alone():
        if is_ready(lists):
            return
        if is_ready(RUN):
            install(lists)
        else:
            remove_old()
            build(lists)


def remove_old() -> None:
    """Remove an environment of ours that is unfinished or out of date; one that is not ours is left alone."""
    if not VENV.exists():
        return
    if not UNFINISHED.exists() and not stamp_file(RUN).exists():
        raise SetupError(f"{VENV} was not made by loom.py; move it away and try again")
    tell("the environment in .venv is unfinished or out of date and is made again")
    shutil.rmtree(VENV)


def build(lists: Sequence[str]) -> None:
    """Make the environment from nothing. It is built in its final place, since environments cannot be moved."""
    tell(f"setting up {VENV}, once; this takes a minute or two")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        VENV.mkdir()
        UNFINISHED.touch()
        code, said = run([sys.executable, "-m", "venv", str(VENV)], tell)
        if code:
            raise SetupError(f"python -m venv failed: {' '.join(said)[-600:]}")
        install(lists)
        UNFINISHED.unlink()
    except BaseException:
        shutil.rmtree(VENV, ignore_errors=True)
        raise


def install(lists: Sequence[str]) -> None:
    """Let pip install the lists and note what was installed."""
    wanted = ROOT / "requirements" / lists[-1]
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command = [str(PYTHON), "-m", "pip", "install", *options, "-r", str(wanted)]
    code, said = run(command, tell)
    if code:
        reason = reason_of(said) if code > 0 else f"it was ended by signal {-code}"
        raise SetupError(f"pip could not install requirements/{lists[-1]}: {reason}")
    for count in range(1, len(lists) + 1):
        stamp_file(lists[:count]).write_text(fingerprint(lists[:count]))


def tell(sentence: str) -> None:
    """Say something on stderr; stdout belongs to the command's result."""
    print(f"loom.py: {sentence}", file=sys.stderr, flush=True)


def enter(arguments: Sequence[str]) -> int:
    """Run this file again with the environment's interpreter."""
    command = [str(PYTHON), str(ROOT / "loom.py"), *arguments]
    if os.name != "nt":
        os.execv(PYTHON, command)
    return subprocess.run(command).returncode


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 done, 1 failed, 2 wrong usage, 130 stopped. Help and wrong usage need no environment."""
    from lib_lora.cli.main import COMMANDS
    from lib_lora.cli.main import main as command_line

    if not arguments or arguments[0] not in COMMANDS or Path(sys.prefix) == VENV:
        return command_line(arguments)
    lists = TEST if arguments[0] == "test" else RUN
    try:
        if not is_ready(lists):
            check_version()
            set_up(lists)
        return enter(arguments)
    except (SetupError, OSError) as error:
        tell(f"{error}")
        return 1
    except KeyboardInterrupt:
        tell("stopped")
        return 130


def check_version() -> None:
    """Refuse an interpreter that the pins are not made for."""
    oldest, newest = VERSIONS
    if not oldest <= sys.version_info[:2] <= newest:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(f"Python 3.10 to 3.13 is needed, this is {found}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
