"""Whether anything has changed since the worker's environment was found complete: what `install.py` asks at every start of the WebUI.

Of the modules alone that Python imports by itself: without them the question costs less than looking for the packages anew. What a
note names is compared with what is there; whoever doubts it deletes the note.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOME = os.path.join(ROOT, ".worker")
NOTE = os.path.join(HOME, "ready.txt")
LISTS = os.path.join(ROOT, "requirements")
RECORD = "installed.json"


def is_ready() -> bool:
    """Tell whether all is as `note_ready` found it."""
    try:
        with open(NOTE, encoding="utf-8") as note:
            noted = note.read()
        return noted == _here(noted.partition("\n")[0])
    except (OSError, ValueError):
        return False


def note_ready(overlay: str) -> None:
    """Note that training lacks nothing beside this folder of packages; empty: the host's own serve. Raises OSError."""
    os.makedirs(HOME, exist_ok=True)
    with open(NOTE, "w", encoding="utf-8") as note:
        note.write(_here(overlay))


def count(folder: str) -> list[int]:
    """Return how many files lie in a folder and their bytes together, without the record and what Python compiles."""
    files, size, folders = 0, 0, [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders += [entry.path] * (entry.name != "__pycache__")
                elif entry.name != RECORD:
                    files, size = files + 1, size + entry.stat().st_size
    return [files, size]


def _here(overlay: str) -> str:
    """Return what the answer depends on: the interpreter, the names of its packages, the lists, and what lies in the overlay."""
    lists = [os.path.join(LISTS, name) for name in sorted(os.listdir(LISTS))]
    files = [os.path.join(ROOT, "lib_lora", "jobs", "environment.py"), *lists]
    lines = [overlay, sys.version, *map(_packages, sys.path)]
    if overlay:
        files.append(os.path.join(overlay, RECORD))
        lines.append(str(count(overlay)))
    return "\n".join([*lines, *(f"{file} {os.stat(file).st_mtime_ns}" for file in files)])


def _packages(folder: str) -> str:
    """Return the names by which pip's packages in a folder are known, with their versions."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    return " ".join(sorted(name for name in names if name.endswith(".dist-info")))
