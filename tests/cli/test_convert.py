"""The `convert` command: what it prints, and its exit codes."""

import pytest
import torch

from lib_lora.cli.main import main
from lib_lora.families.sd1 import SD1
from lib_lora.formats.dialects import layers_of
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import write_network

TO_K = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"


@pytest.fixture
def lora(tmp_path):
    file = tmp_path / "style.safetensors"
    tensors = {"lora_down.weight": torch.ones(1, 768), "lora_up.weight": torch.ones(8, 1)}
    write_network(file, {f"unet.{TO_K}": tensors}, layers_of(SD1), SD1.components)
    return file


def test_a_conversion_tells_what_it_wrote(lora, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    assert main(["convert", str(lora), "--to", "diffusers", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"1 layers of Stable Diffusion 1, from kohya to diffusers; written: {out}\n"
    )
    assert read_header(out).tensors.keys() == {
        f"unet.{TO_K}.lora_{factor}.weight" for factor in "AB"
    }


def test_errors_are_one_sentence_and_the_right_code(lora, tmp_path, capsys):
    out = str(tmp_path / "out.safetensors")
    assert main(["convert", str(lora), "--to", "diffusers", "--out", str(lora)]) == 2
    assert main(["convert", f"{lora}x", "--to", "diffusers", "--out", out]) == 1
    assert capsys.readouterr().err.count("\n") == 2
    assert main(["convert", str(lora), "--to", "diffuser", "--out", out]) == 2


def test_help_shows_an_example(capsys):
    assert main(["convert", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "python3 loom.py convert style.safetensors --to diffusers" in shown
