"""The pictures of a lesson as the training sees them: readable, square, of one size, each with its caption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.train.buckets import Buckets
from lib_lora.train.dataset import Problem, find_pictures
from lib_lora.train.pixels import load_picture


@dataclass(frozen=True, slots=True)
class Album:
    """Pictures and their captions; every caption is there, be it empty."""

    pictures: tuple[Image.Image, ...]
    captions: tuple[str, ...]


def read_album(folder: Path, caption: str, side: int) -> Album:
    """Read a folder of pictures of any size and format; raises LoraError with the reasons when not one can be read."""
    found = find_pictures(folder, caption)
    pictures, captions, problems = [], [], list(found.problems)
    for picture in found.pictures:
        try:
            pictures.append(load_picture(picture.file, Buckets(side, step=0)).image)
        except FileFormatError as error:
            problems.append(Problem(picture.file, str(error)))
            continue
        captions.append(picture.caption)
    if not pictures:
        reasons = " ".join(f"{problem}." for problem in problems[:5])
        raise LoraError(f"No picture in {folder} can be read. {reasons}")
    return Album(tuple(pictures), tuple(captions))
