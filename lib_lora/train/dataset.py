"""A folder of pictures of any size and any format that Pillow reads, brought to squares of the training size.

A picture is scaled so that it covers the square and cut at its centre: there are no aspect buckets. Subfolders named `N_name` repeat
their pictures N times and caption them `name` when nothing else does, as kohya's folders do.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.train.captions import read_caption

REPEATS = re.compile(r"(\d+)_(.*)")
WHITE = (255, 255, 255, 255)
TRANSPARENT_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
MAX_REPEATS = 10_000
# What Pillow's plugins raise for damaged files; OSError covers its own UnidentifiedImageError.
UNREADABLE = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, RuntimeError),
    *(ArithmeticError, struct.error, zlib.error, Image.DecompressionBombError),
)


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
    places = [(folder, 1, caption)]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        named = REPEATS.fullmatch(inner.name)
        if named and 0 < int(named[1]) <= MAX_REPEATS:
            places.append((inner, int(named[1]), caption or named[2]))
        elif not inner.name.startswith("."):
            problems.append(
                Problem(
                    inner, f"is a folder whose name is not N_name with N from 1 to {MAX_REPEATS}"
                )
            )
    for place, repeats, default in places:
        _find_in(place, repeats, default, pictures, problems)
    if not pictures:
        reasons = " ".join(f"{problem}." for problem in problems[:5])
        raise LoraError(f"{folder} holds no picture. {reasons}".strip())
    return Dataset(tuple(pictures), tuple(problems))


def load_square(file: Path, size: int) -> Tensor:
    """Read a picture as (3, size, size) uint8: upright, transparent parts white; raises FileFormatError with the reason."""
    try:
        with Image.open(file) as image:
            return _square(image, size)
    except UNREADABLE as error:
        raise FileFormatError(f"cannot be read as a picture: {error}") from None


def _find_in(
    place: Path, repeats: int, default: str, pictures: list[Picture], problems: list[Problem]
) -> None:
    extensions = readable_extensions()
    for file in sorted(path for path in place.iterdir() if path.is_file()):
        if file.suffix.lower() == ".txt" or file.name.startswith("."):
            continue
        if file.suffix.lower() not in extensions:
            problems.append(Problem(file, "is not of a format that Pillow reads"))
            continue
        try:
            pictures.append(Picture(file, read_caption(file, default), repeats))
        except FileFormatError as error:
            problems.append(Problem(file, str(error)))


def readable_extensions() -> frozenset[str]:
    """Return the file extensions, dotted and in lower case, of the formats that Pillow can open."""
    return frozenset(
        extension
        for extension, format_ in Image.registered_extensions().items()
        if format_ in Image.OPEN
    )


def _square(image: Image.Image, size: int) -> Tensor:
    """Cut and scale first, then turn upright: a centred square is the same whichever way up, and it is small."""
    image.draft("RGB", (size * 2, size * 2))
    # Some formats turn themselves upright while they load, and take the orientation off.
    image.load()
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    orientation = image.getexif().get(0x0112, 1)
    small = _plain(image).resize((size, size), Image.Resampling.LANCZOS, box, reducing_gap=3.0)
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, WHITE), small)
    small = small.convert("RGB")
    small.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(small)
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous()


def _plain(image: Image.Image) -> Image.Image:
    """Return the first frame in a mode that scales well: RGB, or RGBA when something is transparent."""
    if image.mode[0] in "IF":
        return _from_wide(np.asarray(image))
    if image.mode in TRANSPARENT_MODES or "transparency" in image.info:
        return image.convert("RGBA")
    return image.convert("RGB")


def _from_wide(values: np.ndarray) -> Image.Image:
    """Bring gray of 16 or more bits, or floats, to 8 bits: the smallest of 1, 255 and 65,535 that holds its values is white."""
    peak = float(values.max(initial=0))
    white = next((limit for limit in (1.0, 255.0, 65535.0) if peak <= limit), peak)
    return Image.fromarray((values / white * 255).clip(0, 255).astype(np.uint8)).convert("RGB")
