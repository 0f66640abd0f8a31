"""What lies beside a network file: written once, and never over what a person put there."""

import json

import pytest

from lib_lora.train.companions import write_companions


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a.b.safetensors"


@pytest.fixture
def sample(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "000010-00.png").write_bytes(b"a picture")
    return tmp_path / "samples" / "000010-00.png"


def test_the_webui_finds_both_by_the_name_of_the_file(file, sample):
    written = write_companions(file, sample, "a kaze")
    assert [each.name for each in written] == ["a.b.png", "a.b.json"]
    assert written[0].read_bytes() == b"a picture"
    assert json.loads(written[1].read_text("utf-8")) == {"activation text": "a kaze"}
    assert write_companions(file, sample, "other") == []


@pytest.mark.parametrize("name", ["a.b.png", "a.b.jpg", "a.b.preview.png", "a.b.preview.webp"])
def test_a_persons_own_preview_stays(file, sample, name):
    file.with_name(name).write_bytes(b"mine")
    assert write_companions(file, sample, "") == []
    assert file.with_name(name).read_bytes() == b"mine"


def test_a_persons_own_words_stay(file):
    words = file.with_suffix(".json")
    words.write_text('{"notes": "mine"}')
    assert write_companions(file, None, "a kaze") == []
    assert json.loads(words.read_text()) == {"notes": "mine"}


def test_nothing_to_say_is_no_file(file):
    assert write_companions(file, None, "") == []
