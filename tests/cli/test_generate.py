"""`generate`, from its arguments to the files it leaves."""

import json
import shutil

import pytest
from PIL import Image

from lib_lora.cli.generate import infotext
from lib_lora.cli.main import main
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.host import GenerateRequest
from lib_lora.networks.contract import CreateOptions, LayerShape
from lib_lora.networks.lora import LORA
from lib_lora.train.objective import stream
from tests.tiny import CONFIG, tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a base, its configuration beside it, and a LoRA on one layer."""
    folder = tmp_path_factory.mktemp("models")
    base = open_checkpoint(tiny_checkpoint(folder))
    shutil.copytree(CONFIG, folder / "model")
    layer = base.layers["unet.mid_block.attentions.0.proj_in"]
    tensors = LORA.create(LayerShape(layer.shape), CreateOptions(2, 2.0), stream(0, "up"))
    tensors["lora_up.weight"].fill_(0.1)
    (folder / "loras").mkdir()
    write_network(
        folder / "loras/ink.safetensors", {layer.id: tensors}, base.layers, base.family.components
    )
    return folder


def test_a_picture_with_its_settings_and_its_trace(folder, tmp_path, capsys):
    prompt = "a red circle <lora:ink:0@0,1@1> <lora:ink:0.5:start=2>"
    out, trace = tmp_path / "new/picture.png", tmp_path / "trace.json"
    settings = "--negative blurry --steps 3 --seed 5 --size 64x128 --sampler heun --cfg 4.5"
    files = ["--lora-dir", str(folder / "loras"), "--out", str(out), "--trace", str(trace)]
    base = str(folder / "tiny-0.safetensors")
    code = main(["generate", "--base", base, "--prompt", prompt, *settings.split(), *files])
    assert (code, *capsys.readouterr()) == (0, "", "")
    picture = Image.open(out)
    assert picture.size == (64, 128)
    assert picture.text["parameters"] == (
        f"{prompt}\nNegative prompt: blurry\n"
        "Steps: 3, Sampler: heun, CFG scale: 4.5, Seed: 5, Size: 64x128, Model: tiny-0"
    )
    rows = json.loads(trace.read_text())
    # Heun's second evaluations fall on the next step; the second tag adds 0.5 from step 2.
    assert [row["step"] for row in rows] == [0, 1, 1, 2, 2]
    assert [row["strengths"] for row in rows] == [{"ink": s} for s in (0, 0.5, 0.5, 1.5, 1.5)]
    assert [row["evaluation"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["sigma"] > 14 > rows[1]["sigma"] == rows[2]["sigma"] > rows[3]["sigma"]
    assert not list(out.parent.glob("*.part"))


def test_what_is_left_out_is_told_and_written(folder, tmp_path, capsys):
    out = tmp_path / "picture.png"
    base = str(folder / "tiny-0.safetensors")
    arguments = ["--prompt", "a cat <lora:ik:1>", "--steps", "1", "--out", str(out)]
    loras = ["--lora-dir", str(folder / "loras")]
    assert main(["generate", "--base", base, *arguments, *loras]) == 0
    note = "There is no LoRA 'ik'. Did you mean 'ink'?"
    assert capsys.readouterr().err == f"{note}\n"
    picture = Image.open(out)
    # Without --size: the size that the base was trained on.
    assert picture.size == (64, 64)
    assert picture.text["parameters"].endswith(f"Model: tiny-0, Loom errors: {note}")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--size", "big"], 2, "--size 'big': WIDTHxHEIGHT in pixels is accepted"),
        (["--lora-dir", "nowhere"], 2, "nowhere is no folder."),
        (["--base", "nothing.safetensors"], 1, "nothing.safetensors"),
        (["--out", "picture.jpg"], 2, "name a file that ends in .png"),
        (["--trace", "trace.png"], 2, "name a file that ends in .json"),
        (["--seed", "-1"], 2, "Seed -1: whole numbers from 0 to 18446744073709551615"),
        (["--seed", str(2**64)], 2, f"Seed {2**64}: whole numbers from 0"),
        (["--cfg", "nan", "--steps", "1"], 1, "no numbers: lower the strength"),
        (["--cfg", "1e39", "--steps", "1"], 1, "no numbers: lower the strength"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(folder, tmp_path, capsys, arguments, code, sentence):
    base = str(folder / "tiny-0.safetensors")
    out = tmp_path / "picture.png"
    given = ["generate", "--base", base, "--prompt", "a", "--out", str(out), *arguments]
    assert main(given) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_place_that_takes_no_file_is_refused_before_the_base_is_read(folder, tmp_path, capsys):
    base = folder / "tiny-0.safetensors"
    before = base.read_bytes()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for out in (base, tmp_path / "folder.png", tmp_path / "file/new/picture.png", tmp_path):
        assert main(["generate", "--base", "none", "--prompt", "a", "--out", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert base.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"folder.png", "file"}


def test_settings_with_separators_are_quoted():
    text = infotext(GenerateRequest(prompt="a"), "my, model", ["one: two"])
    assert 'Model: "my, model", Loom errors: "one: two"' in text
    assert text.startswith("a\nSteps: 20, Sampler: euler,")
