"""The report of a folder: every count, name and piece of advice that a person can act on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lib_lora.errors import LoraError
from lib_lora.train.dataset_report import report

ROOT = Path(__file__).parents[2]


def draw(file, size, colour="red"):
    file.parent.mkdir(exist_ok=True)
    Image.new("RGB", size, colour).save(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six pictures of three shapes, one of them damaged, two the same."""
    place = tmp_path_factory.mktemp("pictures")
    draw(place / "a.png", (640, 384))
    draw(place / "b.png", (1200, 800), "blue")
    draw(place / "c.png", (100, 100))
    draw(place / "3_blue dog" / "d.png", (512, 512), "green")
    draw(place / "3_blue dog" / "e.png", (512, 512), "green")
    for name, text in (("a", "shs, a fox, red"), ("b", "shs, a fox , tree"), ("c", "a fox, shs")):
        (place / f"{name}.txt").write_text(text, "utf-8")
    data = (place / "b.png").read_bytes()
    (place / "cut.png").write_bytes(data[: len(data) // 2])
    (place / "gone.png").symlink_to("nowhere.png")
    return place


def test_counts_and_names(folder):
    found = report(folder, 512)
    assert (found.pictures, found.samples, found.captioned) == (5, 3 + 2 * 3, 5)
    assert (found.smallest, found.largest) == ((100, 100), (1200, 800))
    assert [(each.name, each.repeats, each.pictures) for each in found.folders] == [
        (".", 1, 3),
        ("3_blue dog", 3, 2),
    ]
    buckets = {(each.width, each.height): (each.pictures, each.samples) for each in found.buckets}
    assert buckets == {(640, 384): (2, 2), (512, 512): (3, 7)}
    assert found.enlarged == ("a.png", "c.png")
    assert found.without_caption == ()
    left_out = {each.file: each.reason for each in found.left_out}
    assert left_out.keys() == {"cut.png", "gone.png"}
    assert left_out["cut.png"].startswith("cannot be read as a picture")
    assert found.duplicates == (("3_blue dog/d.png", "3_blue dog/e.png"),)
    assert [(each.tag, each.pictures) for each in found.tags[:2]] == [("a fox", 3), ("shs", 3)]


def test_the_configuration_of_the_training_is_that_of_the_report(folder):
    squares = report(folder, 256, bucket_step=0)
    assert [(each.width, each.height) for each in squares.buckets] == [(256, 256)]
    kept = report(folder, 512, upscale=False)
    assert (64, 64) in {(each.width, each.height) for each in kept.buckets}
    assert not any("enlarged" in sentence for sentence in kept.advice)


def test_it_is_plain_json_and_the_progress_is_told(folder):
    heard = []
    found = report(folder, progress=lambda *numbers: heard.append(numbers))
    assert heard == [(n, 6) for n in range(1, 7)]
    again = json.loads(json.dumps(found.to_dict()))
    assert again["pictures"] == 5
    assert again["buckets"][0].keys() == {"width", "height", "pictures", "samples"}


def advice(tmp_path, captions, size=(64, 64), count=None):
    for number in range(count or len(captions)):
        draw(tmp_path / f"{number}.png", size, (number % 256, number // 256, 0))
    for number, text in enumerate(captions):
        if text is not None:
            (tmp_path / f"{number}.txt").write_text(text, "utf-8")
    return " ".join(report(tmp_path, 64).advice)


def test_advice_on_numbers(tmp_path):
    assert "3 pictures are few" in advice(tmp_path / "few", ["a, x", "a, y", "a, z"])
    assert advice(tmp_path / "fine", [f"a, word {n}" for n in range(12)]) == ""
    assert "201 pictures are many" in advice(tmp_path / "many", ["a, x", "b"] * 100 + ["c"], (8, 8))


def test_advice_on_captions(tmp_path):
    none = advice(tmp_path / "none", [None] * 12)
    assert "No picture has a caption" in none
    some = advice(tmp_path / "some", [f"a, word {n}" for n in range(11)] + [None])
    assert "11.png is without a caption." in some
    common = advice(tmp_path / "common", [f"shs, solo, word {n}" for n in range(12)])
    assert "In every caption: shs, solo." in common
    same = advice(tmp_path / "same", ["shs, solo", "solo, shs"] * 6)
    assert "All captions are the same" in same


def test_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(LoraError, match="holds no picture"):
        report(tmp_path)


def test_it_needs_neither_torch_nor_the_model_libraries(folder):
    code = (
        "import sys; sys.modules.update(torch=None, diffusers=None, transformers=None);"
        "from pathlib import Path; from lib_lora.train.dataset_report import report;"
        f"print(report(Path({str(folder)!r})).pictures)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("5\n", "")
