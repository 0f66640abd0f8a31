"""Reading a picture: upright, opaque, scaled and cut to its bucket."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from lib_lora.errors import FileFormatError
from lib_lora.train.buckets import Buckets, Fit, Size

WHITE = (255, 255, 255, 255)
TRANSPARENT_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
# The EXIF tag that tells how a picture is turned, and the values that exchange its sides.
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)
# What Pillow's plugins raise for damaged files; OSError covers its own UnidentifiedImageError.
UNREADABLE = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, RuntimeError),
    *(ArithmeticError, struct.error, zlib.error, Image.DecompressionBombError),
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A picture as it is trained on: RGB, of its bucket's size; and how it came there."""

    image: Image.Image
    fit: Fit


def load_picture(file: Path, buckets: Buckets) -> Loaded:
    """Read a picture upright, transparent parts white, and cut it to its bucket; raises FileFormatError with the reason."""
    try:
        with Image.open(file) as image:
            stored = _decode(image, buckets.size * 2)
            fit = buckets.fit(*_upright(stored, image))
            return Loaded(_cut(image, fit), fit)
    except UNREADABLE as error:
        raise FileFormatError(f"cannot be read as a picture: {error}") from None


def picture_size(file: Path) -> Size:
    """Return the upright size of a picture, decoding all of it; raises FileFormatError with the reason when that fails."""
    try:
        with Image.open(file) as image:
            return _upright(_decode(image, 1), image)
    except UNREADABLE as error:
        raise FileFormatError(f"cannot be read as a picture: {error}") from None


def _decode(image: Image.Image, least: int) -> Size:
    """Decode a picture, a JPEG to no more than `least` pixels a side ask for, and return the size that it is stored in.

    Some formats turn themselves upright while they load, and take the orientation off.
    """
    opened = image.size
    image.draft("RGB", (least, least))
    shrunk = image.size != opened
    image.load()
    return Size(*(opened if shrunk else image.size))


def _upright(stored: Size, image: Image.Image) -> Size:
    return Size(stored.height, stored.width) if _orientation(image) in TURNED else stored


def _orientation(image: Image.Image) -> int:
    return image.getexif().get(ORIENTATION, 1)


def _cut(image: Image.Image, fit: Fit) -> Image.Image:
    """Cut and scale first, then turn upright: a centred piece is the same whichever way up, and it is small."""
    orientation = _orientation(image)
    width, height = fit.bucket[::-1] if orientation in TURNED else fit.bucket
    wide, high = (
        min(image.width, image.height * width / height),
        min(image.height, image.width * height / width),
    )
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    box = (left, top, left + wide, top + high)
    plain = _plain(image)
    small = plain.resize((width, height), Image.Resampling.LANCZOS, box, reducing_gap=3.0)
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, WHITE), small)
    small = small.convert("RGB")
    small.getexif()[ORIENTATION] = orientation
    return ImageOps.exif_transpose(small)


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
