"""The worker's environment: the host's interpreter and packages, and before them on the path what those lack.

What is lacking lies in overlays: folders below `.worker/`, each filled by pip from one complete pinned list of `requirements/` with
`--target`, so that nothing of the host changes. A folder's name carries a hash of its list and of the interpreter: another list or
another Python is another folder, and none is ever renamed or overwritten. `installed.json` is written last; a folder without it, or
with other files than it tells of, is unfinished or damaged and is made again.

Of the standard library alone and quick to import, which dataclasses and hashlib are not: `install.py` asks at the WebUI's start
whenever its note (`ready`) no longer holds.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lib_lora.errors import LoraError, UsageError, did_you_mean
from lib_lora.jobs.offline import OFFLINE
from lib_lora.jobs.ready import RECORD, count

Tell = Callable[[str], None]
Version = tuple[int, ...]

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
HOME = PACKAGE_ROOT / ".worker"
LISTS = PACKAGE_ROOT / "requirements"
# No run lasts so long that its worker still needs an overlay that nothing asks for any more.
MONTH = 30 * 24 * 3600

ANY: Version = (9999,)
Range = tuple[Version, Version]
"""From a version on, below another."""

# Sets of versions that train; a host that has one of them needs no overlay.
SERVING: tuple[Mapping[str, Range], ...] = (
    {
        "torch": ((2, 1), ANY),
        "diffusers": ((0, 31), (0, 32)),
        "transformers": ((4, 30, 2), (4, 56)),
        "huggingface_hub": ((0, 23, 2), (1,)),
    },
    {
        "torch": ((2, 1), ANY),
        "diffusers": ((0, 32), (0, 36)),
        "transformers": ((4, 45), (4, 56)),
        "huggingface_hub": ((0, 23, 2), (1,)),
    },
    {
        "torch": ((2, 6), ANY),
        "diffusers": ((0, 35), ANY),
        "transformers": ((4, 49), ANY),
        "huggingface_hub": ((0, 34), ANY),
    },
)


class PinnedList(NamedTuple):
    """A list of `requirements/`, the hosts it is for, and the megabytes that it takes on the disk, rounded up."""

    name: str
    hosts: Mapping[str, Range]
    megabytes: int


# The first that is for the host is taken.
BASE = (
    PinnedList(
        "worker-small",
        {
            "torch": ((2, 1), (2, 6)),
            "transformers": ((4, 30, 2), (4, 56)),
            "safetensors": ((0, 4), ANY),
        },
        60,
    ),
    PinnedList("worker-large", {"torch": ((2, 1), ANY)}, 200),
)
EXTRAS: Mapping[str, tuple[PinnedList, ...]] = {
    "bitsandbytes": (
        PinnedList("bitsandbytes-torch-2.1", {"torch": ((2, 1), (2, 6))}, 400),
        PinnedList("bitsandbytes-torch-2.6", {"torch": ((2, 6), ANY)}, 400),
    ),
    "lion_pytorch": (PinnedList("lion-pytorch", {"torch": ((2, 1), ANY)}, 1),),
    "prodigyopt": (PinnedList("prodigyopt", {"torch": ((2, 1), ANY)}, 1),),
}
OLDEST_TORCH = "2.1"
WAITING = "waiting for another process that installs the worker's packages"


class Overlay(NamedTuple):
    """A folder filled from a pinned list; `missing` names what of the list has to be installed, nothing when it is complete."""

    pins: Path
    folder: Path
    megabytes: int
    missing: tuple[str, ...]


class Plan(NamedTuple):
    """What the host's own packages lack: an overlay or, when they serve as they are, none; or why no list can help."""

    overlay: Overlay | None = None
    problem: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that have to be installed."""
        return self.overlay.missing if self.overlay else ()


def needed() -> Plan:
    """Tell what training needs beside the host's own packages."""
    found = installed()
    if any(_within(found, versions) for versions in SERVING):
        return Plan()
    return _choose(BASE, found)


def needed_for(extra: str) -> Plan:
    """Tell what an optional package needs beside the host's own; raises UsageError for one that is not known."""
    if extra not in EXTRAS:
        raise UsageError(f"There is no optional package {extra!r}. {did_you_mean(extra, EXTRAS)}")
    found = installed()
    return Plan() if extra in found else _choose(EXTRAS[extra], found)


def status(extra: str = "") -> str | None:
    """Say what training lacks and what helps, or return None when nothing does. extra: an optional package that it needs."""
    plan = needed()
    if not plan.problem and not plan.missing and extra:
        plan = needed_for(extra)
    if plan.problem or not plan.overlay or not plan.missing:
        return plan.problem or None
    return (
        f"Training needs {listed(plan.missing)} for its worker process. Press Prepare, or start the WebUI while it can reach PyPI "
        f"or your mirror; they go into a folder of their own ({plan.overlay.megabytes} MB at most) and the WebUI's packages stay as "
        "they are. Everything else works without them."
    )


def prepare(tell: Tell, extra: str = "") -> None:
    """Install what training lacks, telling each step; raises UsageError or LoraError with one sentence.

    extra: an optional package besides, such as "bitsandbytes".
    """
    _install(needed(), tell)
    if extra:
        _install(needed_for(extra), tell)


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker: this process's, the overlays and this package first on its path, no model hub."""
    plans = (needed(), *map(needed_for, EXTRAS))
    overlays = [plan.overlay for plan in plans if plan.overlay and not plan.missing]
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    path = [*(str(overlay.folder) for overlay in overlays), str(PACKAGE_ROOT), *inherited]
    return {**os.environ, **OFFLINE, "PYTHONPATH": os.pathsep.join(path)}


def installed() -> dict[str, Version]:
    """Return the versions of the host's packages by name, `-` and `.` written as `_`; overlays do not count.

    From the names of the folders that pip leaves: importlib.metadata costs more time than an unneeded `install.py` may take.
    """
    found: dict[str, Version] = {}
    for entry in sys.path:
        folder = Path(entry)
        if folder.is_relative_to(HOME) or not folder.is_dir():
            continue
        for path in folder.glob("*.dist-info"):
            if match := re.fullmatch(r"([\w.-]+?)-(\d[^-]*)\.dist-info", path.name):
                found.setdefault(re.sub("[-.]", "_", match[1]).lower(), version(match[2]))
    return found


def version(text: str) -> Version:
    """Return the numbers that a version begins with: 2.1.2+cu121 is (2, 1, 2)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _within(found: Mapping[str, Version], ranges: Mapping[str, Range]) -> bool:
    return all(oldest <= found.get(name, ()) < above for name, (oldest, above) in ranges.items())


def _choose(lists: tuple[PinnedList, ...], found: Mapping[str, Version]) -> Plan:
    chosen = next((pinned for pinned in lists if _within(found, pinned.hosts)), None)
    if chosen:
        return Plan(_overlay(chosen))
    torch = ".".join(map(str, found.get("torch", ())))
    has = f"the WebUI has {torch}" if torch else f"{sys.executable} has none"
    return Plan(problem=f"Training needs torch {OLDEST_TORCH} or newer; {has}.")


def _overlay(chosen: PinnedList) -> Overlay:
    pins = LISTS / f"{chosen.name}.txt"
    text = pins.read_text("utf-8")
    build = f"{sys.implementation.cache_tag} {sys.platform}"
    digest = zlib.crc32(f"{text}\n{build}".encode())
    folder = HOME / f"{chosen.name}-{digest:08x}"
    names = tuple(re.findall(r"^([\w.-]+==[\w.]+)", text, re.MULTILINE))
    missing = () if _is_whole(folder) else names
    return Overlay(pins, folder, chosen.megabytes, missing)


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return record["files"] == count(str(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _install(plan: Plan, tell: Tell) -> None:
    if plan.problem:
        raise LoraError(plan.problem)
    overlay = plan.overlay
    if overlay is None or not overlay.missing:
        return
    try:
        HOME.mkdir(exist_ok=True)
        with _alone(tell):
            if not _is_whole(overlay.folder):
                _fill(overlay, tell)
    except OSError as error:
        raise LoraError(f"The worker's packages could not be installed: {error}.") from None


def _fill(overlay: Overlay, tell: Tell) -> None:
    import shutil

    from lib_lora.jobs.pip import reason_of, run

    free = shutil.disk_usage(HOME).free >> 20
    if free < overlay.megabytes:
        raise LoraError(
            f"The worker's packages need {overlay.megabytes} MB in {HOME}, and {free} MB are free."
        )
    if overlay.folder.exists():
        shutil.rmtree(overlay.folder)
    try:
        code, said = run(_pip(overlay), tell, _pip_environment())
        if code:
            raise LoraError(f"{listed(overlay.missing)} could not be installed: {reason_of(said)}.")
        record = {"files": count(str(overlay.folder)), "pins": overlay.missing}
        (overlay.folder / RECORD).write_text(json.dumps(record), "utf-8")
    except BaseException:
        shutil.rmtree(overlay.folder, ignore_errors=True)
        raise
    for other in HOME.glob(f"{overlay.pins.stem}-*"):
        if other != overlay.folder and time.time() - other.stat().st_mtime > MONTH:
            shutil.rmtree(other, ignore_errors=True)


def _pip(overlay: Overlay) -> list[str]:
    """Return the command; wheels only, so that nothing is built and no code of a package runs."""
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-compile",
        "--no-input",
        "--retries",
        "1",
    ]
    options += ["--disable-pip-version-check", "--progress-bar", "off"]
    # The WebUI's own way of naming a mirror; pip's ways are pip's business.
    mirror = os.environ.get("INDEX_URL", "")
    options += ["--index-url", mirror] if mirror else []
    target = ["--target", str(overlay.folder), "-r", str(overlay.pins)]
    return [sys.executable, "-m", "pip", "install", *options, *target]


def _pip_environment() -> dict[str, str]:
    """Return this process's environment, without the settings of pip that do not go with a target folder."""
    return {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}


@contextlib.contextmanager
def _alone(tell: Tell) -> Iterator[None]:
    """Let one process at a time install; the system opens the lock of one that dies."""
    with (HOME / "lock").open("a+b") as handle:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            while True:
                try:
                    msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)
                    break
                except OSError as error:  # it tries for ten seconds, and pip takes longer
                    if error.errno != errno.EDEADLK:
                        raise
                    tell(WAITING)
        else:
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                tell(WAITING)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def listed(pins: tuple[str, ...]) -> str:
    """Return pins as words: "diffusers 0.31.0 and huggingface-hub 0.23.5"."""
    words = [pin.replace("==", " ") for pin in pins]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
