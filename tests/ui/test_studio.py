"""Which files a visitor may name, and when a model is loaded."""

from pathlib import Path

import pytest

from lib_lora.errors import LoraError, UsageError
from lib_lora.host import GenerateRequest
from lib_lora.ui.generate_page import draw_picture
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


@pytest.mark.parametrize(
    "name", ["~nobody-of-this-name/x", "a\0b", "x" * 5000], ids=["home", "nul", "long"]
)
def test_what_is_no_path_is_told(tmp_path, name):
    studio, recorder = studio_of(tmp_path)
    for base, folder in ((name, ""), ("", name)):
        with pytest.raises(UsageError, match=r"There is no checkpoint|cannot be read as a path"):
            studio.draw(base, folder, GenerateRequest(prompt="x"))
    assert recorder.opened == []


def test_paths_may_begin_at_home_and_be_quoted_as_they_are_pasted(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    studio, recorder = studio_of(tmp_path)
    (tmp_path / "loras").mkdir()
    studio.draw('"~/two.safetensors"', ' "~/loras" ', GenerateRequest(prompt="x"))
    assert recorder.opened == [(tmp_path / "two.safetensors", tmp_path / "loras")]


def test_visitors_of_an_open_server_cannot_name_files(tmp_path):
    studio, recorder = studio_of(tmp_path, fixed_files=True)
    studio.draw(str(tmp_path / "two.safetensors"), "/", GenerateRequest(prompt="x"))
    assert recorder.opened == [(tmp_path / "one.safetensors", tmp_path)]


def test_names_are_those_of_the_files(tmp_path):
    studio, _ = studio_of(tmp_path)
    assert studio.network_names("") == ["one", "two"]
    assert studio.network_names(str(Path(tmp_path) / "missing")) == []


def test_no_question_but_for_a_picture_loads_the_model(tmp_path):
    studio, recorder = studio_of(tmp_path)
    assert [base.file for base in studio.checkpoints()] == [tmp_path / "one.safetensors"]
    assert studio.network_folder() == tmp_path
    assert dict(studio.layers()) == {}
    assert (studio.differing_layers(), studio.busy()) == ((), False)
    assert recorder.opened == []


def test_a_training_takes_the_model_out_of_memory_and_the_next_picture_brings_it_back(tmp_path):
    studio, recorder = studio_of(tmp_path)
    request = GenerateRequest(prompt="x")
    studio.draw("", "", request)
    studio.release_gpu()
    studio.draw("", "", request)
    assert len(recorder.opened) == 2


def test_a_gpu_that_is_lent_draws_nothing_until_it_is_back(tmp_path, monkeypatch):
    studio, recorder = studio_of(tmp_path)
    monkeypatch.setattr(studio, "_device", "cuda")
    studio.release_gpu()
    with pytest.raises(LoraError, match="A training has the GPU"):
        studio.draw("", "", GenerateRequest(prompt="x"))
    studio.restore_gpu()
    assert studio.draw("", "", GenerateRequest(prompt="x")) == "x"
    assert len(recorder.opened) == 1


def test_a_network_from_elsewhere_is_copied_once(tmp_path):
    studio, _ = studio_of(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "new.safetensors"
    file.write_bytes(b"new")
    studio.add_network(file)
    assert (tmp_path / "new.safetensors").read_bytes() == b"new"
    with pytest.raises(UsageError, match="already"):
        studio.add_network(file)
    studio.add_network(tmp_path / "new.safetensors")


def test_a_server_of_fixed_files_is_restricted(tmp_path):
    assert not studio_of(tmp_path)[0].info().restricted
    assert studio_of(tmp_path, fixed_files=True)[0].info().restricted


def test_a_sentence_of_the_generate_page_is_shown_as_it_is(tmp_path):
    """A tag in angle brackets would vanish as markup, and a star or a line of underscores as emphasis."""
    studio, _ = studio_of(tmp_path)

    def fail(*_):
        raise UsageError("No <lora:__a*b*:1>;\nsee `here`.")

    studio.draw = fail
    numbers = {"steps": 4, "guidance": 5, "width": 64, "height": 64, "seed": 0}
    words = {"prompt": "x", "negative": "", "sampler": "Euler", "base": "", "folder": ""}
    _, _, told = draw_picture(studio, **words, **numbers)
    # CommonMark shows a punctuation mark behind a backslash as itself.
    assert told == r"No \<lora\:\_\_a\*b\*\:1\>\; see \`here\`\."


@pytest.mark.parametrize("empty", ["steps", "guidance", "width", "height", "seed"])
def test_an_emptied_number_is_told_and_draws_nothing(tmp_path, empty):
    studio, recorder = studio_of(tmp_path)
    numbers = {"steps": 4, "guidance": 5, "width": 64, "height": 64, "seed": 0, empty: None}
    words = {"prompt": "x", "negative": "", "sampler": "Euler", "base": "", "folder": ""}
    picture, _, told = draw_picture(studio, **words, **numbers)
    assert picture is None
    assert told == "Steps, guidance, width, height and seed each need a number."
    assert recorder.opened == []


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("steps", -5),
        ("steps", 100000),
        ("guidance", 0.5),
        ("width", 0),
        ("height", 1e9),
        ("seed", -1),
        ("guidance", float("nan")),
    ],
)
def test_a_number_outside_its_limits_is_told_with_its_field(tmp_path, field, number):
    studio, recorder = studio_of(tmp_path)
    numbers = {"steps": 4, "guidance": 5, "width": 64, "height": 64, "seed": 0, field: number}
    words = {"prompt": "x", "negative": "", "sampler": "Euler", "base": "", "folder": ""}
    _, _, told = draw_picture(studio, **words, **numbers)
    shown = told.replace("\\", "")
    assert shown.startswith(f"{field.capitalize()} accepts ")
    assert shown.endswith(f"; found {number:.10g}.")
    assert recorder.opened == []
