"""`plan`: for a family without any file, for a file, and for this machine; as a table and as JSON."""

import json

import pytest

from lib_lora.cli.main import main
from lib_lora.train.memory import GB
from tests.tiny import tiny_checkpoint


def report(capsys, *arguments):
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("family", "size"), [("sd1", 512), ("sd2", 768), ("sdxl", 1024), ("sd3", 1024)]
)
def test_a_family_is_planned_without_a_file_at_its_own_size(capsys, family, size):
    told = report(capsys, "--family", family, "--vram", "24")
    assert (told["family"], told["size"], told["free_bytes"]) == (family, size, 24 * GB)
    names = [phase["name"] for phase in told["phases"]]
    assert names == ["pictures", "captions", "training", "saving"]
    assert told["peak_bytes"] == max(phase["bytes"] for phase in told["phases"])
    assert told["fits"]
    assert told["note"] == "estimate, not yet calibrated on a GPU"


def test_switches_and_little_memory_choose_savings(capsys):
    told = report(capsys, "--family", "sdxl", "--vram", "24", "--lowvram")
    chosen = {choice["setting"]: choice["value"] for choice in told["choices"]}
    assert (chosen["run.checkpointing"], chosen["run.storage"]) == (True, "fp8")
    roomy = report(capsys, "--family", "sdxl", "--vram", "24")
    assert roomy["peak_bytes"] > 1.5 * told["peak_bytes"]


def test_a_file_on_this_machine(capsys, tmp_path):
    told = report(capsys, "--base", str(tiny_checkpoint(tmp_path)), "--size", "64")
    assert (told["family"], told["size"]) == ("sd1", 64)
    assert told["phases"][2]["parts"]["weights"] < 100e6


def test_a_table_for_people(capsys):
    assert main(["plan", "--family", "sdxl", "--vram", "12", "--medvram"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Stable Diffusion XL at 1024 px, 12.0 GB free (cuda)"
    assert "  gradient checkpointing: -6.3 GB, about +30 % time" in lines
    assert lines[-2] == "It fits."
    assert main(["plan", "--family", "sdxl", "--vram", "2"]) == 0
    assert "It does not fit: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--family", "sdx"], "Did you mean 'sdxl'?"),
        (["--family", "sd1", "--size", "100"], "divisible by 8"),
        (["--family", "sd1", "--vram", "0"], "a number of GB above 0"),
        (["--family", "sd1", "--medvram", "--lowvram"], "not allowed with"),
        ([], "required"),
    ],
)
def test_wrong_usage_is_2(capsys, arguments, said):
    assert main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err
