"""`inspect` through the command line: one JSON object, or lines for a person."""

import json

import pytest
import torch

from lib_lora.cli.main import main
from lib_lora.families.sd1 import SD1
from lib_lora.formats.network_file import write_network
from lib_lora.networks.lora import ALPHA, DOWN, UP
from tests.golden_data import golden, shapes_of
from tests.tiny import tiny_checkpoint

# The keys that scripts rely on.
KEYS = {
    *("family", "dialect", "types", "layers", "components", "ranks", "alphas"),
    *("unmatched", "problems", "hashes", "metadata"),
}
HASHES = {"sshs_model_hash", "autov1", "autov2", "autov3", "modelspec"}


@pytest.fixture
def lora(tmp_path):
    layers = SD1.layers(shapes_of(golden("sd15")["original"]))
    tensors = {DOWN: torch.ones(4, 6), UP: torch.ones(5, 4), ALPHA: torch.tensor(2.0)}
    file = tmp_path / "style.safetensors"
    told = {"ss_output_name": "style", "modelspec.trigger_phrase": "loomcat"}
    write_network(file, {"unet.conv_in": tensors}, layers, SD1.components, metadata=told)
    return file


def test_json_has_the_stable_keys_and_nothing_else_is_printed(lora, capsys):
    assert main(["inspect", str(lora), "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert report.keys() == KEYS
    assert report["hashes"].keys() == HASHES
    assert (report["family"], report["ranks"], report["alphas"]) == ("sd1", {"4": 1}, {"2": 1})


def test_a_person_reads_what_they_want_to_know(lora, capsys):
    assert main(["inspect", str(lora)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0][0] == "style.safetensors:"
    told = dict(lines[1:])
    assert (told["trigger"], told["rank"], told["alpha"]) == ("loomcat", "4", "2")


def test_a_checkpoint_is_told_with_the_same_keys(tmp_path, capsys):
    assert main(["inspect", str(tiny_checkpoint(tmp_path)), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == KEYS
    assert report["components"].keys() == {"unet", "te1", "vae"}
    assert {left["tensor"] for left in report["unmatched"]} > {"betas", "alphas_cumprod"}


def test_help_shows_an_example(capsys):
    assert main(["inspect", "--help"]) == 0
    assert "python3 loom.py inspect my-style.safetensors" in capsys.readouterr().out


def test_a_damaged_file_is_one_sentence(tmp_path, capsys):
    file = tmp_path / "cut.safetensors"
    file.write_bytes(b"\x05")
    assert main(["inspect", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cut.safetensors" in err
