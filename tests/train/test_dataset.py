"""A folder's pictures with their captions and repeats; what is left out is named."""

import os
from pathlib import PurePath

import pytest
from PIL import Image

from lib_lora.errors import LoraError
from lib_lora.train.dataset import find_pictures


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


def test_a_folder_of_thousands_takes_no_longer_for_each(tmp_path, monkeypatch):
    """Among captions in a list, 2,000 pictures would be compared with a caption four million times."""
    for number in range(2000):
        (tmp_path / f"{number:04}.png").touch()
        (tmp_path / f"{number:04}.txt").touch()
    compared, equal = 0, type(tmp_path).__eq__

    def counted(self, other):
        nonlocal compared
        compared += 1
        return equal(self, other)

    monkeypatch.setattr(PurePath, "__eq__", counted)
    found = find_pictures(tmp_path)
    assert (len(found.pictures), found.problems) == (2000, ())
    assert compared < 20 * 2000


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


@pytest.mark.skipif(os.name == "nt", reason="makes files that POSIX alone has")
def test_links_to_nothing_and_what_is_no_file_are_named(folder):
    (folder / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "3_blue dog" / "deep").mkdir()
    (folder / "lost.txt").write_text("words", "utf-8")
    named = {problem.file.name: problem.reason for problem in find_pictures(folder).problems}
    assert named["gone.png"] == "is a link to a file that is not there"
    assert named["pipe.png"] == "is no regular file"
    assert named["deep"].startswith("is a folder inside a folder")
    assert named["lost.txt"] == "is a caption without a picture of its name"


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "x.doc").write_bytes(b"x")
    with pytest.raises(LoraError, match=r"holds no picture.*x.doc"):
        find_pictures(tmp_path)
    with pytest.raises(LoraError, match="is not a folder"):
        find_pictures(tmp_path / "nowhere")
