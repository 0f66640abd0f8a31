import pytest
from PIL import Image

from lib_lora.demo.album import read_album
from lib_lora.errors import LoraError


def test_pictures_of_any_format_and_size_become_squares_with_captions(tmp_path):
    Image.new("RGB", (90, 30), "red").save(tmp_path / "a.png")
    Image.new("P", (20, 50)).save(tmp_path / "b.gif")
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(tmp_path / "c.webp", lossless=True)
    Image.new("L", (300, 200), 128).save(tmp_path / "d.bmp")
    (tmp_path / "a.txt").write_text("a red field\n")
    album = read_album(tmp_path, "a picture of mine", 64)
    assert [picture.size for picture in album.pictures] == [(64, 64)] * 4
    assert {picture.mode for picture in album.pictures} == {"RGB"}
    assert album.captions == ("a red field", *["a picture of mine"] * 3)
    colours = [picture.getpixel((32, 32)) for picture in album.pictures]
    assert colours == [(255, 0, 0), (0, 0, 0), (255, 255, 255), (128, 128, 128)]


def test_one_readable_picture_is_enough(tmp_path):
    Image.new("RGB", (10, 10)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    assert len(read_album(tmp_path, "", 64).pictures) == 1


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    with pytest.raises(LoraError, match="holds no picture"):
        read_album(tmp_path, "", 64)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LoraError, match=r"nowhere is not a folder"):
        read_album(tmp_path / "nowhere", "", 64)


def test_a_folder_of_unreadable_files_names_them_with_the_reason(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    (tmp_path / "worse.jpg").write_bytes(b"")
    with pytest.raises(LoraError, match=r"bad\.png cannot be read.*worse\.jpg cannot be read"):
        read_album(tmp_path, "", 64)
