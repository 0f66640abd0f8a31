"""A folder of pictures of any size and any format that Pillow reads, with their captions; none of them is opened here.

Subfolders named `N_name` repeat their pictures N times and caption them `name` when nothing else does, as kohya's folders do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.train.captions import read_caption

REPEATS = re.compile(r"(\d+)_(.*)")
MAX_REPEATS = 10_000
CAPTION = ".txt"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture to train on."""

    file: Path
    caption: str
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is left out, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.file.name} {self.reason}"


@dataclass(frozen=True, slots=True)
class Dataset:
    """The pictures of a folder, ordered by name and not yet opened, and what was left out."""

    pictures: tuple[Picture, ...]
    problems: tuple[Problem, ...]


def find_pictures(folder: Path, caption: str = "") -> Dataset:
    """List the pictures of a folder with their captions; raises LoraError when there is none.

    caption: of pictures that have no text beside them; left empty, that of an `N_name` folder is its name.
    """
    if not folder.is_dir():
        raise LoraError(f"{folder} is not a folder of pictures.")
    pictures: list[Picture] = []
    problems: list[Problem] = []
    for place, repeats, default in _places(folder, caption, problems):
        if place != folder:
            problems += [
                Problem(inner, "is a folder inside a folder, whose pictures are not looked for")
                for inner in sorted(place.iterdir())
                if inner.is_dir()
            ]
        _find_in(place, repeats, default, pictures, problems)
    if not pictures:
        reasons = " ".join(f"{problem}." for problem in problems[:5])
        raise LoraError(f"{folder} holds no picture. {reasons}".strip())
    return Dataset(tuple(pictures), tuple(problems))


def _places(folder: Path, caption: str, problems: list[Problem]) -> list[tuple[Path, int, str]]:
    """List the folders that hold pictures, how often an epoch repeats theirs, and the caption of those without a text."""
    places = [(folder, 1, caption)]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        named = REPEATS.fullmatch(inner.name)
        if named and 0 < int(named[1]) <= MAX_REPEATS:
            places.append((inner, int(named[1]), caption or named[2]))
        elif not inner.name.startswith("."):
            reason = f"is a folder whose name is not N_name with N from 1 to {MAX_REPEATS}"
            problems.append(Problem(inner, reason))
    return places


def _find_in(
    place: Path, repeats: int, default: str, pictures: list[Picture], problems: list[Problem]
) -> None:
    extensions = readable_extensions()
    files = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")]
    # By key: thousands of pictures are looked for among as many captions.
    captions = dict.fromkeys(file for file in files if file.suffix.lower() == CAPTION)
    for file in files:
        if file.is_dir() or file in captions:
            continue
        try:
            _check(file, extensions)
            pictures.append(Picture(file, read_caption(file, default), repeats))
        except FileFormatError as error:
            problems.append(Problem(file, str(error)))
    stems = {file.stem for file in files if file not in captions}
    problems += [
        Problem(file, "is a caption without a picture of its name")
        for file in captions
        if file.stem not in stems
    ]


def _check(file: Path, extensions: frozenset[str]) -> None:
    """Raise FileFormatError for what cannot be a picture."""
    if not file.exists():
        raise FileFormatError("is a link to a file that is not there")
    if not file.is_file():
        raise FileFormatError("is no regular file")
    if file.suffix.lower() not in extensions:
        raise FileFormatError("is not of a format that Pillow reads")


def readable_extensions() -> frozenset[str]:
    """Return the file extensions, dotted and in lower case, of the formats that Pillow can open."""
    return frozenset(
        extension
        for extension, format_ in Image.registered_extensions().items()
        if format_ in Image.OPEN
    )
