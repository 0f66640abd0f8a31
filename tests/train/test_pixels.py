"""Pictures of every kind become upright and opaque, and are cut to their bucket; what cannot be read is named."""

import numpy as np
import pytest
from PIL import Image

from lib_lora.errors import FileFormatError
from lib_lora.train.buckets import Buckets, Size
from lib_lora.train.pixels import load_picture, picture_size

RED, GREEN, BLUE = (255, 0, 0), (0, 128, 0), (0, 0, 255)


def two_halves(size, first=RED, second=BLUE, mode="RGB"):
    """Return a picture whose left half has one colour and whose right half another."""
    image = Image.new(mode, size, first)
    image.paste(second, (size[0] // 2, 0, size[0], size[1]))
    return image


def load_square(file, size):
    return load_picture(file, Buckets(size, step=0)).image


def colour_at(square, x, y):
    return square.getpixel((x, y))


def close(found, expected, within=6):
    return all(abs(a - b) <= within for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "name", ["p.png", "p.jpg", "p.bmp", "p.gif", "p.webp", "p.tiff", "p.tga", "p.ppm"]
)
def test_formats(tmp_path, name):
    two_halves((48, 48)).save(tmp_path / name)
    square = load_square(tmp_path / name, 16)
    assert (square.size, square.mode) == ((16, 16), "RGB")
    assert close(colour_at(square, 2, 8), RED)
    assert close(colour_at(square, 13, 8), BLUE)


@pytest.mark.parametrize("size", [(8, 8), (9, 31), (500, 8), (1, 1), (10_000, 40), (3000, 3000)])
def test_sizes(tmp_path, size):
    Image.new("RGB", size, GREEN).save(tmp_path / "p.png")
    assert load_square(tmp_path / "p.png", 64).getcolors() == [(64 * 64, GREEN)]


def test_the_centre_is_cut_out(tmp_path):
    image = Image.new("RGB", (300, 100), RED)
    image.paste(GREEN, (100, 0, 200, 100))
    image.save(tmp_path / "p.png")
    square = load_square(tmp_path / "p.png", 20)
    assert close(colour_at(square, 10, 10), GREEN)
    assert close(colour_at(square, 1, 10), GREEN)
    assert close(colour_at(square, 18, 10), GREEN)


# What the eight orientations of EXIF do to a stored picture whose top left quarter is red: where the red is when it is upright.
CORNERS = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 1), 8: (0, 1)}


@pytest.mark.parametrize("orientation", CORNERS)
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_orientation(tmp_path, orientation, suffix):
    image = Image.new("RGB", (60, 40), BLUE)
    image.paste(RED, (0, 0, 30, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / f"p.{suffix}", exif=exif)
    square = load_square(tmp_path / f"p.{suffix}", 40)
    red = [
        (x, y)
        for x in (0, 1)
        for y in (0, 1)
        if close(colour_at(square, 4 + 31 * x, 4 + 31 * y), RED, 40)
    ]
    assert red == [CORNERS[orientation]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(tmp_path, mode):
    image = two_halves((40, 40), (0, 0, 0, 255), (0, 0, 0, 0), "RGBA")
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    image.save(tmp_path / "p.png")
    square = load_square(tmp_path / "p.png", 20)
    assert close(colour_at(square, 4, 10), (0, 0, 0))
    assert close(colour_at(square, 15, 10), (255, 255, 255))


@pytest.mark.parametrize(
    ("dtype", "white"), [(np.uint8, 255), (np.uint16, 65535), (np.float32, 1.0)]
)
def test_gray_of_any_depth(tmp_path, dtype, white):
    values = np.zeros((40, 40), dtype)
    values[:, 20:] = white
    values[:20] = white / 2
    Image.fromarray(values).save(tmp_path / "p.tiff")
    square = load_square(tmp_path / "p.tiff", 20)
    assert close(colour_at(square, 4, 4), (127, 127, 127))
    assert close(colour_at(square, 4, 15), (0, 0, 0))
    assert close(colour_at(square, 15, 15), (255, 255, 255))


def test_a_damaged_file_says_so(tmp_path):
    two_halves((64, 64)).save(tmp_path / "whole.png")
    data = (tmp_path / "whole.png").read_bytes()
    for name, content in {
        "cut.png": data[: len(data) // 2],
        "text.jpg": b"hello",
        "none.png": b"",
        # Its plugin raises NotImplementedError for a pixel format of no bits.
        "blank.dds": b"DDS " + (124).to_bytes(4, "little") + bytes(120),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileFormatError, match="cannot be read as a picture"):
            load_square(tmp_path / name, 16)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_wide_picture_goes_to_a_wide_bucket_once_it_is_upright(tmp_path, suffix, orientation):
    """Stored 1500 x 800, so that a JPEG is read at a part of its size."""
    image = Image.new("RGB", (1500, 800), BLUE)
    image.paste(RED, (0, 0, 750, 800))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / f"p.{suffix}", exif=exif)
    loaded = load_picture(tmp_path / f"p.{suffix}", Buckets(128, step=32))
    upright = Size(800, 1500) if orientation == 6 else Size(1500, 800)
    assert picture_size(tmp_path / f"p.{suffix}") == upright
    assert loaded.fit.original == upright
    # 160 x 96 is the bucket nearest to 1.875 : 1 with at most 128 * 128 pixels.
    assert loaded.image.size == loaded.fit.bucket == ((96, 160) if orientation == 6 else (160, 96))
    first = {1: (10, 48), 3: (150, 48), 6: (48, 10)}[orientation]
    last = {1: (150, 48), 3: (10, 48), 6: (48, 150)}[orientation]
    assert close(colour_at(loaded.image, *first), RED, 40)
    assert close(colour_at(loaded.image, *last), BLUE, 40)


def test_what_is_cut_off_is_told_in_pixels_of_the_scaled_picture(tmp_path):
    Image.new("RGB", (300, 100), RED).save(tmp_path / "p.png")
    fit = load_picture(tmp_path / "p.png", Buckets(64, step=0)).fit
    # Scaled by 0.64 to 192 x 64, of which the middle 64 columns stay.
    assert (fit.left, fit.top) == (64, 0)
