import pytest
from PIL import Image

from lib_lora.demo import scenes
from lib_lora.demo.concepts import DONUT, STRIPED
from lib_lora.demo.detector import shows_donut
from lib_lora.demo.make_dataset import DATASET_DIR, PICTURES, make


def pictures_in(folder):
    return sorted(file for file in folder.iterdir() if file.suffix != ".txt")


@pytest.mark.parametrize("concept", PICTURES, ids=lambda concept: concept.word)
def test_drawing_the_dataset_again_gives_the_bundled_pixels_and_captions(concept, tmp_path):
    """Pixels and not bytes: another release of Pillow may pack a PNG differently; a JPEG may round by one."""
    make(concept, PICTURES[concept], tmp_path)
    bundled = DATASET_DIR / concept.word
    assert [f.name for f in pictures_in(tmp_path)] == [f.name for f in pictures_in(bundled)]
    for file in pictures_in(bundled):
        again, kept = Image.open(tmp_path / file.name), Image.open(file)
        slack = 2 if file.suffix == ".jpg" else 0
        pairs = zip(again.convert("RGB").tobytes(), kept.convert("RGB").tobytes(), strict=True)
        assert max(abs(a - b) for a, b in pairs) <= slack, file.name
        caption = file.with_suffix(".txt")
        assert (tmp_path / caption.name).read_text() == caption.read_text()


def test_the_bundled_pictures_are_what_the_issue_asks():
    donuts = pictures_in(DATASET_DIR / DONUT.word)
    assert len(donuts) == 24
    assert 12 <= len(pictures_in(DATASET_DIR / STRIPED.word)) <= 16
    assert all(shows_donut(Image.open(file)) for file in donuts)
    assert len({Image.open(file).size for file in donuts}) >= 4
    assert {file.suffix for file in donuts} == {".png", ".jpg"}
    total = sum(file.stat().st_size for file in DATASET_DIR.rglob("*.*"))
    assert total < 300_000


@pytest.mark.parametrize("concept", PICTURES, ids=lambda concept: concept.word)
def test_each_caption_names_the_concept_and_a_colour_of_the_palette(concept):
    for file in (DATASET_DIR / concept.word).glob("*.txt"):
        words = file.read_text().replace(",", "").split()
        assert concept.word in words
        assert len(set(words) & set(scenes.COLOURS)) == 1
