"""Pictures of every kind become upright, opaque squares; what cannot be read is named."""

import numpy as np
import pytest
import torch
from PIL import Image

from lib_lora.errors import FileFormatError, LoraError
from lib_lora.train.dataset import find_pictures, load_square

RED, GREEN, BLUE = (255, 0, 0), (0, 128, 0), (0, 0, 255)


def two_halves(size, first=RED, second=BLUE, mode="RGB"):
    """Return a picture whose left half has one colour and whose right half another."""
    image = Image.new(mode, size, first)
    image.paste(second, (size[0] // 2, 0, size[0], size[1]))
    return image


def colour_at(square, x, y):
    return tuple(square[:, y, x].tolist())


def close(found, expected, within=6):
    return all(abs(a - b) <= within for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "name", ["p.png", "p.jpg", "p.bmp", "p.gif", "p.webp", "p.tiff", "p.tga", "p.ppm"]
)
def test_formats(tmp_path, name):
    two_halves((48, 48)).save(tmp_path / name)
    square = load_square(tmp_path / name, 16)
    assert square.shape == (3, 16, 16)
    assert square.dtype == torch.uint8
    assert close(colour_at(square, 2, 8), RED)
    assert close(colour_at(square, 13, 8), BLUE)


@pytest.mark.parametrize("size", [(8, 8), (9, 31), (500, 8), (1, 1), (10_000, 40), (3000, 3000)])
def test_sizes(tmp_path, size):
    Image.new("RGB", size, GREEN).save(tmp_path / "p.png")
    assert (load_square(tmp_path / "p.png", 64) == torch.tensor(GREEN)[:, None, None]).all()


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


@pytest.fixture
def folder(tmp_path):
    """Pictures with captions of every kind, a repeated folder, and things that are no pictures."""
    for name in ("a.png", "b.jpg", "3_blue dog/c.png", "3_blue dog/d.png", "other/e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / name)
    (tmp_path / "a.txt").write_bytes("﻿ein Bär,\r\n  rot \n".encode())
    (tmp_path / "3_blue dog" / "d.txt").write_text("a dog, blue", "utf-8")
    (tmp_path / "notes.heic").write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"x")
    return tmp_path


def test_captions_and_repeats(folder):
    found = {p.file.name: (p.caption, p.repeats) for p in find_pictures(folder).pictures}
    assert found == {
        "a.png": ("ein Bär, rot", 1),
        "b.jpg": ("", 1),
        "c.png": ("blue dog", 3),
        "d.png": ("a dog, blue", 3),
    }


def test_a_caption_in_capitals_is_one(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "DSC_1.PNG")
    (tmp_path / "DSC_1.TXT").write_text("a red car", "utf-8")
    (picture,) = find_pictures(tmp_path).pictures
    assert picture.caption == "a red car"


@pytest.mark.parametrize("name", ["20240131_beach", "0_beach", "99999999999999999999_beach"])
def test_a_number_that_is_no_count_of_repeats_is_told(folder, name):
    """A date before a name would make an epoch of millions of pictures."""
    (folder / name).mkdir()
    Image.new("RGB", (20, 20)).save(folder / name / "f.png")
    found = find_pictures(folder)
    assert "f.png" not in {picture.file.name for picture in found.pictures}
    assert {p.file.name: p.reason for p in found.problems}[name].endswith("with N from 1 to 10000")


def test_the_given_caption_stands_in_where_there_is_none(folder):
    found = {p.file.name: p.caption for p in find_pictures(folder, "a thing").pictures}
    assert found == {
        "a.png": "ein Bär, rot",
        "b.jpg": "a thing",
        "c.png": "a thing",
        "d.png": "a dog, blue",
    }


def test_what_is_left_out_is_named(folder):
    (folder / "a.txt").write_bytes(b"caf\xe9")
    named = {problem.file.name: problem.reason for problem in find_pictures(folder).problems}
    assert named.keys() == {"a.png", "notes.heic", "other"}
    assert "not UTF-8" in named["a.png"]


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "x.doc").write_bytes(b"x")
    with pytest.raises(LoraError, match=r"holds no picture.*x.doc"):
        find_pictures(tmp_path)
    with pytest.raises(LoraError, match="is not a folder"):
        find_pictures(tmp_path / "nowhere")
