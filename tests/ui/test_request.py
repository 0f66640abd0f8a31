"""What a filled form asks for, and what a restricted host does not let it ask for."""

import pytest

from lib_lora.errors import ConfigError
from lib_lora.ui.request import Requests
from tests.ui.hosts import FolderHost

BASE, FOLDER, OUT = "model.base", "data.folder", "saving.out"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.safetensors").touch()
    for name in ("cats", "secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "allowed" / "dogs").mkdir(parents=True)
    return tmp_path


def requests_of(folder, **options):
    host = FolderHost(folder, folder / "base.safetensors", **options)
    return host, Requests(host, folder / "allowed")


def problems(requests, settings, **options):
    with pytest.raises(ConfigError) as caught:
        requests.read(settings, **options)
    return dict(caught.value.problems)


def test_a_name_is_a_file_in_the_folder_of_networks(folder):
    _, requests = requests_of(folder)
    filled = {FOLDER: str(folder / "cats"), OUT: "cats", "network.rank": "4"}
    config = requests.read(filled)
    assert config.saving.out == folder / "loras" / "cats.safetensors"
    assert (config.model.base, config.network.rank) == (folder / "base.safetensors", 4)


def test_everything_that_is_wrong_comes_at_once(folder):
    _, requests = requests_of(folder)
    wrong = {BASE: "/no.safetensors", FOLDER: "/none", OUT: "a/b", "schedule.batch": "0"}
    assert set(problems(requests, wrong)) == {BASE, FOLDER, OUT, "schedule.batch"}
    assert set(problems(requests, {})) == {FOLDER, OUT}


@pytest.mark.parametrize("name", ["../x", "C:x", "a\\b", "con", "x?", "."])
def test_a_name_stays_in_its_folder(folder, name):
    _, requests = requests_of(folder)
    assert OUT in problems(requests, {FOLDER: str(folder / "cats"), OUT: name})


@pytest.mark.parametrize(
    "name", ["~nobody-of-this-name/x", "a\0b", "x" * 5000], ids=["home", "nul", "long"]
)
def test_what_is_no_path_is_told(folder, name):
    for restricted in (False, True):
        _, requests = requests_of(folder, restricted=restricted)
        assert FOLDER in problems(requests, {FOLDER: name, OUT: "x"})
        assert BASE in problems(requests, {BASE: name})


@pytest.mark.parametrize("shape", ["{}", ' "{}" '])
def test_paths_may_begin_at_home_and_be_quoted_as_they_are_pasted(folder, monkeypatch, shape):
    monkeypatch.setenv("HOME", str(folder))
    _, requests = requests_of(folder)
    (folder / "other.safetensors").touch()
    filled = {FOLDER: shape.format("~/cats"), BASE: shape.format("~/other.safetensors"), OUT: "x"}
    config = requests.read(filled)
    assert config.data.folder == folder / "cats"
    assert config.model.base == folder / "other.safetensors"


def test_a_name_is_given_once(folder):
    host, requests = requests_of(folder)
    filled = {FOLDER: str(folder / "cats"), OUT: "cats"}
    taken = {host.network_folder() / "cats.safetensors"}
    assert "queue" in problems(requests, filled, taken=taken)[OUT]
    next(iter(taken)).touch()
    assert "There is a LoRA of this name" in problems(requests, filled)[OUT]


def test_a_loaded_model_that_is_not_its_file_is_to_be_saved_first(folder):
    host, requests = requests_of(folder)
    host.differing = ("unet.conv_in",)
    filled = {FOLDER: str(folder / "cats"), OUT: "cats"}
    assert "save the merge" in problems(requests, filled)[BASE]
    (folder / "other.safetensors").touch()
    assert requests.read({**filled, BASE: str(folder / "other.safetensors")})


def test_over_the_network_nobody_names_files(folder):
    _, requests = requests_of(folder, restricted=True)
    assert requests.read({FOLDER: "dogs", OUT: "dogs"}).data.folder == folder / "allowed" / "dogs"
    outside = {FOLDER: "../secret", OUT: "x", "model.config": "/etc"}
    assert set(problems(requests, outside)) == {FOLDER, "model.config"}
    assert FOLDER in problems(requests, {FOLDER: str(folder / "secret"), OUT: "x"})
    (folder / "allowed" / "link").symlink_to(folder / "secret")
    assert FOLDER in problems(requests, {FOLDER: "link", OUT: "x"})
    (folder / "other.safetensors").touch()
    named = {FOLDER: "dogs", OUT: "x", BASE: str(folder / "other.safetensors")}
    assert BASE in problems(requests, named)


def test_a_sketch_needs_neither_folder_nor_name(folder):
    _, requests = requests_of(folder)
    assert requests.sketch({"network.rank": "2"}).network.rank == 2
    with pytest.raises(ConfigError):
        requests.sketch({"network.rank": "0"})
