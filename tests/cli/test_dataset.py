"""The dataset command: what it prints, and its exit codes."""

import json

import pytest
from PIL import Image

from lib_lora.cli.main import main


@pytest.fixture
def folder(tmp_path):
    for name, size in (("a.png", (640, 384)), ("b.png", (512, 512))):
        Image.new("RGB", size).save(tmp_path / name)
    (tmp_path / "a.txt").write_text("a fox", "utf-8")
    (tmp_path / "c.png").write_bytes(b"no picture")
    return tmp_path


def test_json_is_all_that_is_printed(folder, capsys):
    assert main(["dataset", "report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pictures"], told["captioned"]) == (2, 1)
    assert [each["file"] for each in told["left_out"]] == ["c.png"]


def test_a_person_reads_lines(folder, capsys):
    assert main(["dataset", "report", str(folder), "--size", "256"]) == 0
    out = capsys.readouterr().out
    assert "2 pictures, 1 with a caption, 2 samples an epoch" in out
    assert "bucket    256x256: 1 pictures" in out
    assert "left out  c.png cannot be read as a picture" in out
    assert "advice    b.png is without a caption." in out


def test_exit_codes(tmp_path, folder, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["dataset", "report", str(tmp_path / "empty")]) == 1
    assert main(["dataset", "report", str(folder), "--size", "1"]) == 2
    assert main(["dataset"]) == 2
    assert "holds no picture" in capsys.readouterr().err
