"""The whole demo on a random tiny base and a few steps: what is written and told. The promised figures are the real base's affair."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from lib_lora.cli.progress import ProgressLine
from lib_lora.demo import shots
from lib_lora.demo.report import Report
from lib_lora.demo.run import Demo, DemoRequest
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.hashes import file_sha256
from lib_lora.formats.network_file import read_network
from tests.tiny import tiny_checkpoint

STEPS, FEW = 6, 2  # of a picture, and pairs; nothing here looks at what the pictures show
CACHES = ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
PICTURES = {"contact_sheet.png", "loss.png"}


@dataclass(frozen=True)
class Finished:
    out: Path
    report: Report
    told: str


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("base"), dtype=torch.float16)


def run_demo(folder, base, pairs=shots.PAIRS, **asked):
    """Run the demo with a home and caches that are empty."""
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name in CACHES:
            (folder / name).mkdir()
            patch.setenv(name, str(folder / name))
        patch.setattr(shots, "STEPS", STEPS)
        patch.setattr(shots, "PAIRS", pairs)
        request = DemoRequest(out=folder / "out", base=base, steps=(3, 2), **asked)
        report = Demo(request, ProgressLine(stream)).run()
    return Finished(folder / "out", report, stream.getvalue())


@pytest.fixture(scope="module")
def first(tmp_path_factory, base, kennel):
    with kennel.launches():
        return run_demo(tmp_path_factory.mktemp("first"), base)


@pytest.fixture(scope="module")
def own(tmp_path_factory, base, kennel):
    """One picture of a person's own, of an odd size and without a caption, and another seed."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "cats").mkdir()
    Image.new("P", (31, 77), 3).save(folder / "cats" / "only.gif")
    with kennel.launches():
        return run_demo(folder, base, FEW, data=folder / "cats", seed=1)


def test_everything_that_is_promised_is_written_and_nothing_half(first):
    names = {file.name for file in first.out.iterdir()}
    networks = {"donut.safetensors", "striped.safetensors", "merged.safetensors"}
    words = {"donut.json", "striped.json"}
    assert names == PICTURES | networks | words | {"report.json", "webui", "runs"}
    webui = {file.name for file in (first.out / "webui").iterdir()}
    assert webui == {"tiny-0.safetensors", "tiny-0.yaml"}
    assert not [file for file in first.out.rglob("*") if "part" in file.name]
    assert Image.open(first.out / "contact_sheet.png").width >= 1200


def test_the_network_fits_the_base_and_the_merge_has_its_keys(first, base):
    checkpoint = open_checkpoint(base)
    components = checkpoint.family.components
    network = read_network(first.out / "donut.safetensors", checkpoint.layers, components)
    assert network.dialect == "kohya"
    assert network.layers
    assert not network.unmatched
    merged = open_checkpoint(first.out / "merged.safetensors")
    assert merged.header.shapes == checkpoint.header.shapes
    assert file_sha256(merged.path) != file_sha256(base)


def test_the_report_tells_what_was_measured_in_this_run(first):
    told = json.loads((first.out / "report.json").read_text())
    assert set(told["sha256"]) == {
        *("donut.safetensors", "striped.safetensors", "merged.safetensors"),
        *("contact_sheet.png", "loss.png", "webui/tiny-0.safetensors", "webui/tiny-0.yaml"),
    }
    assert all(digest == file_sha256(first.out / name) for name, digest in told["sha256"].items())
    seconds = dict(told["seconds"])
    total = seconds.pop("total")
    assert set(seconds) >= {"train donut", "train striped", "pictures", "merge", "contact sheet"}
    assert 0.9 * total <= sum(seconds.values()) <= total + 0.1
    assert 10**8 < told["peak_memory_bytes"] < 2 * 10**9
    assert {"first", "last", "fall"} == set(told["validation_loss"]["donut"])
    assert len(told["concept"]["without"]) == len(told["concept"]["having"]) == 16
    assert told["merged_versus_live"]["mean"] < 2
    assert told["notes"] == []


def test_the_progress_tells_stage_step_loss_and_time_left(first):
    assert "Teaching donut: 3 steps on 24 pictures" in first.told
    (last,) = (line for line in first.told.splitlines() if "training" in line and " 3/3 " in line)
    assert "loss" in last
    assert "left" in last


def test_the_same_seed_gives_the_same_bytes_from_an_empty_home(first, own, tmp_path, base):
    again = run_demo(
        tmp_path, base, FEW
    )  # its workers are started, not forked: nothing is left from before
    for name in ("donut.safetensors", "striped.safetensors", "merged.safetensors"):
        assert (again.out / name).read_bytes() == (first.out / name).read_bytes(), name
    other_seed = (own.out / "striped.safetensors").read_bytes()
    assert other_seed != (first.out / "striped.safetensors").read_bytes()


def test_own_pictures_are_measured_by_their_likeness(own):
    assert (own.out / "yours.safetensors").is_file()
    assert own.report.concept is None
    assert own.report.likeness.without > 0
    assert own.report.data == "cats"
    assert "Teaching yours: 3 steps on 1 picture\n" in own.told
