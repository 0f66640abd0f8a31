"""`inspect` through the command line: one JSON object, or lines for a person."""

import hashlib
import json

import pytest
import torch

from lib_lora.cli.main import main
from lib_lora.families.sd1 import SD1
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import write_tensors
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
    told = {
        "ss_output_name": "style",
        "ss_num_train_images": "24",
        "ss_learning_rate": "None",
        "ss_dataset_dirs": '{"10_sks cat": {"n_repeats": 10, "img_count": 24}}',
        "ss_tag_frequency": '{"10_sks cat": {"sitting": 3, "sks cat": 24}}',
    }
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


def test_the_hashes_are_those_of_the_public_descriptions(lora, capsys):
    assert main(["inspect", str(lora), "--json"]) == 0
    content = lora.read_bytes()
    of_data = hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()
    assert json.loads(capsys.readouterr().out)["hashes"] == {
        "sshs_model_hash": of_data,
        "autov1": hashlib.sha256(content[0x100000:0x110000]).hexdigest()[:8],
        "autov2": hashlib.sha256(content).hexdigest()[:10],
        "autov3": of_data[:12],
        "modelspec": f"0x{of_data}",
    }


def told(capsys):
    """Return the lines that were printed, by label, and the lines as they are."""
    lines = capsys.readouterr().out.splitlines()
    return {line[:19].strip(): line[19:] for line in lines if line.startswith("  ")}, lines


def test_a_person_reads_what_they_want_to_know(lora, capsys):
    assert main(["inspect", str(lora)]) == 0
    labels, lines = told(capsys)
    assert lines[0] == "style.safetensors: a network"
    assert labels["family"] == "Stable Diffusion 1"
    assert (labels["names"], labels["type"]) == ("kohya", "lora")
    assert (labels["rank"], labels["alpha"], labels["layers"]) == ("4", "2", "1 (unet 1)")
    assert (labels["name"], labels["pictures"], labels["trigger"]) == ("style", "24", "sks cat")
    assert "learning rate" not in labels
    assert labels["folder"] == "10_sks cat: 24 pictures, 10 times"
    assert [line.split(maxsplit=2)[1:] for line in lines if line.startswith("  tag ")] == [
        ["24", "sks cat"],
        ["3", "sitting"],
    ]
    # 5 x 6 elements of 4 ones times ones, times alpha / rank: sqrt(30 * (4 * 2 / 4) ** 2)
    assert labels["unet IN00"].split() == ["11", "#" * 30]
    assert lines[-2:] == ["Problems", "  none"]


def test_a_text_from_the_file_cannot_steer_the_terminal(tmp_path, capsys):
    file = tmp_path / "evil.safetensors"
    parts = {DOWN: torch.ones(4, 6), UP: torch.ones(5, 4)}
    tensors = {f"lora_unet_conv_in.{suffix}": part for suffix, part in parts.items()}
    tensors |= {"lora_unet_\x1b[2Jnowhere.alpha": torch.tensor(1.0)}
    metadata = {
        "ss_output_name": "\x1b]0;owned\x07 " + "x" * 5000,
        "ss_tag_frequency": json.dumps({"a": {"\x9b31m": 1}}),
        "ss_datasets": "{",
    }
    write_tensors(file, tensors, metadata)
    assert main(["inspect", str(file)]) == 0
    _, lines = told(capsys)
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert any(line.startswith("  lora_unet_?[2Jnowhere.alpha: ") for line in lines)
    assert lines[-3:] == [
        "Problems",
        "  1 of 3 tensors are not applied.",
        "  The metadata 'ss_datasets' cannot be read.",
    ]


def test_a_checkpoint_is_told_with_the_same_keys(tmp_path, capsys):
    assert main(["inspect", str(tiny_checkpoint(tmp_path)), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == KEYS
    assert report["components"].keys() == {"unet", "te1", "vae"}
    assert {left["tensor"] for left in report["unmatched"]} > {"betas", "alphas_cumprod"}


def test_a_person_reads_which_variant_of_a_family_a_checkpoint_is(tmp_path, capsys):
    shapes = {"unet.conv_in": (4, 9, 3, 3), "unet.down_blocks.0.attentions.0.proj_in": (4, 4, 1, 1)}
    shapes |= {"te1.text_model.embeddings.token_embedding": (8, 4)}
    layers = SD1.layers(shapes_of(golden("sd15")["original"]))
    file = tmp_path / "inpainting.safetensors"
    write_tensors(file, {layers[id_].weight.key: torch.zeros(s) for id_, s in shapes.items()}, {})
    assert main(["inspect", str(file)]) == 0
    assert told(capsys)[0]["family"] == "Stable Diffusion 1 inpainting"
    assert main(["inspect", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "sd1"


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
