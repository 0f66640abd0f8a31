"""Who owns a folder: one living process, known by its number and when it started, so that a dead one's folder can be taken over.

A folder's owners are numbered files, of which the highest counts. Whoever finds that owner dead makes the next number, and a file
can be made only once: of two who try, one wins. Nothing is ever locked, so nothing is left locked.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from lib_lora.formats.place import remove

TORN_SECONDS = 1.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. name: what a person knows it by; started: its `beginning`."""

    name: str
    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Tell whether the process is there and no other that got its number."""
        return is_running(self.pid, self.started)

    @property
    def is_me(self) -> bool:
        """Tell whether it is this process."""
        return self.pid == os.getpid() and self.is_alive


def is_running(pid: int, started: str) -> bool:
    """Tell whether the process that began then is still the same one and has not ended."""
    try:
        return beginning(pid) == started and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, OSError, ValueError):
        return False


def beginning(pid: int) -> str:
    """Return what tells a process from others of its number; raises NoSuchProcess or OSError when there is none.

    Linux derives the time from the clock, which may be set while a run goes on; there it is the boot and the ticks since.
    """
    if not BOOT.exists():
        return repr(psutil.Process(pid).create_time())
    # The name in parentheses may hold anything; after it, the beginning is the 20th field (proc_pid_stat(5)).
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return f"{BOOT.read_text().strip()} {fields[19]}"


def this_process(name: str) -> Owner:
    """Return the process that asks."""
    return Owner(name, os.getpid(), beginning(os.getpid()))


def owner_of(folder: Path, kind: str) -> Owner | None:
    """Return the living owner of a folder; kind: what is owned, such as "queue"."""
    files = _files(folder, kind)
    owner = _read(files[-1]) if files else None
    return owner if owner is not None and owner.is_alive else None


def take(folder: Path, kind: str, name: str) -> Owner:
    """Become the owner of a folder unless a living process is, and return who owns it now."""
    while True:
        files = _files(folder, kind)
        owner = _read(files[-1]) if files else None
        if owner is not None and owner.is_alive:
            return owner
        mine = folder / f".{kind}-{_number(files[-1]) + 1 if files else 1:06d}.json"
        me = this_process(name)
        try:
            with mine.open("x", encoding="utf-8") as out:
                out.write(json.dumps(asdict(me)))
        except FileExistsError:
            continue
        # One who was slow may have made a number that was given away, used and removed in the meantime.
        if _files(folder, kind)[-1] != mine:
            remove(mine)
            continue
        for old in files:
            remove(old)
        return me


def release(folder: Path, kind: str) -> None:
    """Let a folder go that this process owns."""
    files = _files(folder, kind)
    owner = _read(files[-1]) if files else None
    if owner is not None and owner.is_me:
        remove(files[-1])


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f".{kind}-*.json"), key=_number)


def _number(file: Path) -> int:
    tail = file.stem.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0


def _read(file: Path) -> Owner | None:
    """Read an owner. A file is made before it is filled, so an empty one is looked at again; one that stays so is a dead one's."""
    end = time.monotonic() + TORN_SECONDS
    while True:
        try:
            raw = json.loads(file.read_text("utf-8"))
            return Owner(str(raw["name"]), int(raw["pid"]), str(raw["started"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            if time.monotonic() > end:
                return None
            time.sleep(0.05)
