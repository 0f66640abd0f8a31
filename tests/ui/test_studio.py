"""Which files a visitor may name, and when a model is loaded."""

from pathlib import Path

import pytest

from lib_lora.errors import UsageError
from lib_lora.host import GenerateRequest
from lib_lora.ui.studio import Defaults, Studio


class Recorder:
    """Stands where the host of models stands, and notes what was opened."""

    def __init__(self):
        self.opened = []

    def __call__(self, base, folders):
        self.opened.append((base, *folders))
        return self

    def generate(self, request):
        return request.prompt


def studio_of(tmp_path, **options):
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").touch()
    recorder = Recorder()
    start = Defaults(
        base=tmp_path / "one.safetensors", lora_dir=tmp_path, size=64, samplers=["Euler"], **options
    )
    return Studio(recorder, start), recorder


def test_a_model_is_opened_once_and_again_when_another_is_asked_for(tmp_path):
    studio, recorder = studio_of(tmp_path)
    request = GenerateRequest(prompt="x")
    one, two = (tmp_path / f"{name}.safetensors" for name in ("one", "two"))
    assert [studio.draw(base, "", request) for base in ("", str(one), str(two), "")] == ["x"] * 4
    assert recorder.opened == [(one, tmp_path), (two, tmp_path), (one, tmp_path)]


def test_a_file_that_is_not_there_is_told(tmp_path):
    studio, _ = studio_of(tmp_path)
    with pytest.raises(UsageError, match="There is no checkpoint"):
        studio.draw(str(tmp_path / "three.safetensors"), "", GenerateRequest(prompt="x"))


def test_visitors_of_an_open_server_cannot_name_files(tmp_path):
    studio, recorder = studio_of(tmp_path, fixed_files=True)
    studio.draw(str(tmp_path / "two.safetensors"), "/", GenerateRequest(prompt="x"))
    assert recorder.opened == [(tmp_path / "one.safetensors", tmp_path)]


def test_names_are_those_of_the_files(tmp_path):
    studio, _ = studio_of(tmp_path)
    assert studio.network_names("") == ["one", "two"]
    assert studio.network_names(str(Path(tmp_path) / "missing")) == []
