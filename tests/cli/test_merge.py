"""The `merge` command: its arguments, its JSON and its exit codes."""

import json
from pathlib import Path

import pytest
import torch

from lib_lora.cli.main import main
from lib_lora.cli.merge import parse_choice
from lib_lora.errors import UsageError
from lib_lora.families.sd1 import CLIP, SD1, UNET
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.merge.plan import LoraChoice


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("a.safetensors", LoraChoice(Path("a.safetensors"))),
        ("a.safetensors=0.8", LoraChoice(Path("a.safetensors"), 0.8)),
        ("a.safetensors=-0.8:0.5", LoraChoice(Path("a.safetensors"), -0.8, 0.5)),
        ("x=y/a.safetensors=1", LoraChoice(Path("x=y/a.safetensors"), 1.0)),
        (r"C:\loras\a.safetensors", LoraChoice(Path(r"C:\loras\a.safetensors"))),
        (r"C:\loras\a.safetensors=.5:0", LoraChoice(Path(r"C:\loras\a.safetensors"), 0.5, 0.0)),
    ],
)
def test_a_choice_is_split_at_the_last_equals_sign(text, choice):
    assert parse_choice(text) == choice


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(tmp_path):
    file = tmp_path / "a=b.safetensors"
    file.touch()
    assert parse_choice(str(file)) == LoraChoice(file)


@pytest.mark.parametrize("text", ["a=o.8", "a=", "a=1:", "a=1:x", "a=nan", "a=inf"])
def test_a_strength_that_is_no_number_is_told(text):
    with pytest.raises(UsageError, match="no number"):
        parse_choice(text)


LAYER = "unet.conv_in"


@pytest.fixture
def files(tmp_path):
    shapes = {
        f"{UNET}input_blocks.0.0.weight": (8, 4, 3, 3),
        f"{UNET}input_blocks.1.1.proj_in.weight": (8, 8, 1, 1),
        f"{CLIP}text_model.embeddings.token_embedding.weight": (5, 8),
    }
    base, lora = tmp_path / "base.safetensors", tmp_path / "lora.safetensors"
    write_tensors(base, {key: torch.ones(shape) for key, shape in shapes.items()}, {})
    network = {
        LAYER: {
            "lora_down.weight": torch.ones(1, 4, 3, 3),
            "lora_up.weight": torch.ones(8, 1, 1, 1),
        }
    }
    write_network(lora, network, SD1.layers(shapes), SD1.components)
    return base, lora, tmp_path / "out.safetensors"


def test_a_dry_run_tells_all_and_writes_nothing(files, capsys):
    base, lora, out = files
    arguments = [
        "merge",
        "--base",
        base,
        "--lora",
        f"{lora}=0.5",
        "--out",
        out,
        "--dry-run",
        "--json",
    ]
    assert main([str(a) for a in arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("free_bytes") > 0
    assert told.pop("output_bytes") == base.stat().st_size
    assert told == {
        "family": "sd1",
        "loras": [
            {
                "file": str(lora),
                "strength": 0.5,
                "te_strength": 0.5,
                "matched": 1,
                "unmatched": [],
                "types": ["lora"],
            }
        ],
        "tensors_touched": 1,
        "warnings": [],
    }
    assert not out.exists()


def test_a_merge_writes_and_reports(files, capsys):
    base, lora, out = files
    arguments = ["merge", "--base", base, "--lora", f"{lora}=0.5", "--out", out]
    assert main([str(a) for a in arguments]) == 0
    text = capsys.readouterr().out
    assert "1 layers (lora), strength 0.5" in text
    assert f"written: {out}" in text
    assert out.stat().st_size > base.stat().st_size


def test_the_live_mode_tells_what_the_webui_leaves_out(files, capsys):
    base, lora, out = files
    with TensorReader(lora) as reader:
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    named = {key.replace("lora_unet_conv_in", LAYER): tensor for key, tensor in tensors.items()}
    found = {}
    for names in (tensors, named):
        write_tensors(lora, names, {})
        common = ["merge", "--base", base, "--lora", lora, "--out", out, "--dry-run", "--json"]
        for mode in ("exact", "live"):
            assert main([str(a) for a in (*common, "--mode", mode)]) == 0
            told = json.loads(capsys.readouterr().out)
            (network,) = told["loras"]
            found[mode] = told["tensors_touched"], len(network["unmatched"]), told["warnings"]
        assert found["exact"] == (1, 0, [])
        if names is tensors:
            assert found["live"] == found["exact"]
    touched, unmatched, (warning,) = found["live"]
    assert (touched, unmatched) == (0, 2)
    assert "the live WebUI finds no layer by this name" in warning


def test_errors_are_one_sentence_and_the_right_code(files, capsys):
    base, lora, out = files
    common = ["merge", "--base", str(base), "--out", str(out)]
    assert main([*common, "--lora", f"{lora}=strong"]) == 2
    assert main([*common, "--lora", f"{lora}x"]) == 1
    assert main([*common[:3], "--out", str(base), "--lora", str(lora)]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert not out.exists()
