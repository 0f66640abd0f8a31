"""How a finished file gets its name: whole or not at all, durable, and where readers hold the old one open too.

Every file of a run that is not appended to goes through `new_file`, so that one place decides what a crash or a full disk can leave:
the file as it was before, and a partial file beside it that nobody reads.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lib_lora.errors import LoraError, NoSpaceError

PARTIAL = ".partial"
SPARE_BYTES = 16 << 20
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""What a system says when a disk, or one's share of it, is full."""
REFUSED_WHILE_READ = os.name == "nt"
TRIES, RETRY_SECONDS = 50, 0.1


@contextmanager
def new_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file in the making; it has its name when the block ends, and is gone when the block raises.

    Raises NoSpaceError when the disk is full.
    """
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open_new(partial) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        put_in_place(partial, file)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoSpaceError(
            f"The disk of {file.parent} is full: {file.name} could not be written."
        ) from error
    finally:
        remove(partial)


def check_space(folder: Path, needed: int) -> None:
    """Raise NoSpaceError when a folder's disk has less than `needed` bytes and a little to spare."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise NoSpaceError(
            f"{folder} has {free / 1e6:.0f} MB free and {(needed + SPARE_BYTES) / 1e6:.0f} MB are needed."
        )


def check_takes_files(folder: Path) -> None:
    """Raise LoraError when no file can be made in a folder; on every system, only trying tells."""
    file = folder / f".lora-loom.{secrets.token_hex(4)}{PARTIAL}"
    try:
        file.touch(exist_ok=False)
        remove(file)
    except OSError as error:
        raise LoraError(f"{folder} takes no new file: {error.strerror}.") from error


def open_new(partial: Path) -> BinaryIO:
    """Open a file that is not there yet, with the rights that the person's settings give to new files."""
    return partial.open("xb")


def put_in_place(partial: Path, file: Path) -> None:
    """Replace a file by a finished one."""
    _when_nobody_reads(lambda: partial.replace(file))
    _sync_folder(file.parent)


def remove(file: Path) -> None:
    """Remove a file, or find that it is gone."""
    _when_nobody_reads(lambda: file.unlink(missing_ok=True))


def remove_partial(folder: Path, *names: str) -> None:
    """Remove what killed writers left of these files in a folder, or of all; nobody may be writing them."""
    for name in map(glob.escape, names) if names else "*":
        for partial in folder.glob(f".{name}.*{PARTIAL}"):
            remove(partial)


def _when_nobody_reads(act: Callable[[], object]) -> None:
    """Do what Windows refuses while someone has the file open; readers are quick, so it is tried for a while."""
    for left in reversed(range(TRIES)):
        try:
            act()
            return
        except PermissionError:
            if not (REFUSED_WHILE_READ and left):
                raise
            time.sleep(RETRY_SECONDS)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; Windows can neither open a folder nor needs to."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
