"""Room on the disk: told before the first step, and when it is gone the training pauses on what it has and goes on from there."""

import contextlib
import json
import math
from pathlib import Path

import pytest

from lib_lora.errors import LoraError, NoSpaceError
from lib_lora.formats import place
from lib_lora.train import disk, training
from lib_lora.train.config import TrainConfig
from lib_lora.train.optim import Optimizer
from lib_lora.train.state import kept_step
from tests.train.asked import asked_config
from tests.train.pictures import make_pictures
from tests.train.test_training import Noter

STEPS = 6


@pytest.fixture(scope="module")
def asked(tiny_file, tmp_path_factory):
    """Make a training that saves at every second step and keeps states in between."""
    pictures = make_pictures(tmp_path_factory.mktemp("pictures"), count=2)

    def make(folder):
        sections = {
            "schedule": {"steps": STEPS, "batch": 1},
            "network": {"rank": 2, "alpha": 1.0},
            "loss": {"validation_draws": 2},
            "saving": {"every": 2, "state_every": 3, "dtype": "fp32"},
        }
        return asked_config(tiny_file, pictures, folder / "lora.safetensors", **sections)

    return make


@pytest.fixture(scope="module")
def whole(asked, tmp_path_factory):
    """What the training leaves when nothing goes wrong: name -> bytes."""
    folder = tmp_path_factory.mktemp("whole")
    watcher = Noter()
    result = training.train(asked(folder), folder, None, watcher)
    assert result.ending == "done"
    return watcher, {f.name: f.read_bytes() for f in folder.rglob("*.safetensors")}


def test_what_will_be_written_is_told_and_is_what_is_written(whole):
    watcher, files = whole
    network = len(files["lora.safetensors"])
    state = next(len(data) for name, data in files.items() if name.startswith("0000003"))
    # Two states, the saves after steps 2 and 4, and the file itself; headers and metadata are not counted.
    assert watcher.needed == pytest.approx(2 * state + 3 * network, rel=0.25)
    assert watcher.needed < 2 * state + 3 * network
    assert watcher.free > watcher.needed


def test_a_disk_without_room_is_told_before_the_first_step(asked, tmp_path, monkeypatch):
    def refuse(folder, needed):
        raise NoSpaceError("No room.")

    monkeypatch.setattr(disk, "check_space", refuse)
    watcher = Noter()
    with pytest.raises(NoSpaceError):
        training.train(asked(tmp_path), tmp_path, None, watcher)
    assert watcher.steps == []


class FullAfter:
    """Lets so many files through and then has no room, whatever is freed meanwhile; counts what was asked of it."""

    def __init__(self, files):
        self.left, self.asked = files, 0
        self.open_new = place.open_new

    def __call__(self, partial):
        self.asked += 1
        if self.asked > self.left:
            partial.touch()
            raise OSError(28, "No space left on device")
        return self.open_new(partial)


def test_a_disk_that_fills_up_at_any_file_pauses_and_the_rest_is_the_same(
    asked, whole, tmp_path, monkeypatch
):
    _, files = whole
    # Saves after 2 and 4, a state after 3, and the file itself.
    for through in (1, 3):
        folder = tmp_path / str(through)
        folder.mkdir()
        full = FullAfter(through)
        with monkeypatch.context() as patch:
            patch.setattr(place, "open_new", full)
            paused = training.train(asked(folder), folder, None, Noter())
        assert full.asked == through + 2, "a state was tried after what did not fit"
        assert paused.ending == "paused"
        assert "could not be written" in paused.message
        assert f"Paused after step {paused.step}" in paused.message
        assert paused.step == (3 if through >= 2 else 0)
        assert list(folder.rglob("*.partial")) == []
        for file in folder.rglob("*.safetensors"):
            assert file.read_bytes() == files[file.name]
        result = training.train(asked(folder), folder, None, Noter())
        assert result.ending == "done"
        assert result.file.read_bytes() == files["lora.safetensors"]


def test_a_state_that_still_fits_is_kept_when_a_save_does_not(asked, whole, tmp_path, monkeypatch):
    _, files = whole
    real = disk.write_network

    def too_big(file, *rest):
        if file.name == "lora.safetensors":
            raise NoSpaceError("No room for the network.")
        real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_network", too_big)
        paused = training.train(asked(tmp_path), tmp_path, None, Noter())
    assert (paused.ending, paused.step) == ("paused", STEPS)
    watcher = Noter()
    assert training.train(asked(tmp_path), tmp_path, None, watcher).ending == "done"
    assert watcher.steps == []
    assert (tmp_path / "lora.safetensors").read_bytes() == files["lora.safetensors"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no file")
def test_a_folder_that_takes_no_file_is_told_before_the_first_step(asked, tmp_path):
    """It is asked for a file when the training is over, which may be hours later."""
    watcher = Noter()
    with pytest.raises(LoraError, match="/proc takes no new file"):
        training.train(asked(Path("/proc")), tmp_path, None, watcher)
    assert watcher.steps == []


def test_a_network_that_cannot_be_written_loses_no_step(asked, whole, tmp_path, monkeypatch):
    """A drive that is gone when the training is over comes back, or the folder is made writable."""
    _, files = whole
    real = disk.write_network

    def refuse(file, *rest):
        if file.name == "lora.safetensors":
            raise PermissionError(13, "Permission denied", str(file))
        real(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_network", refuse)
        paused = training.train(asked(tmp_path), tmp_path, None, Noter())
    assert (paused.ending, paused.step) == ("paused", STEPS)
    assert "Permission denied" in paused.message
    assert f"Paused after step {STEPS}: put that right, then resume." in paused.message
    watcher = Noter()
    assert training.train(asked(tmp_path), tmp_path, None, watcher).ending == "done"
    assert watcher.steps == []
    assert (tmp_path / "lora.safetensors").read_bytes() == files["lora.safetensors"]


def test_a_state_of_no_numbers_takes_the_place_of_none(asked, tmp_path, monkeypatch):
    """The loss of a step is that before its update, so it is still finite when the update has ruined the network."""
    step = Optimizer.step

    def ruin(self, number):
        rate = step(self, number)
        if number == 3:
            self.groups[0].flat.fill_(math.nan)
        return rate

    plain = asked(tmp_path).to_dict()
    for every in (0, 2):
        saving = {**plain["saving"], "state_every": 2, "every": every}
        config = TrainConfig.from_dict({**plain, "saving": saving})
        run = tmp_path / str(every)
        run.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(Optimizer, "step", ruin)
            with pytest.raises(LoraError, match=r"no numbers at step 4: lower the rates"):
                training.train(config, run, None, Noter())
        assert kept_step(run / "state") == 2
        assert training.train(config, run, None, Noter()).ending == "done"


def test_what_a_killed_writer_left_is_gone_when_the_next_one_begins(asked, tmp_path):
    left = [
        tmp_path / "saves" / ".lora-000002.safetensors.ab12.partial",
        tmp_path / "state" / ".0000003.safetensors.ab12.partial",
        tmp_path / ".lora.safetensors.ab12.partial",
    ]
    other = tmp_path / ".another.safetensors.ab12.partial"
    for file in (*left, other):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"half")
    with contextlib.suppress(KeyboardInterrupt):
        training.train(asked(tmp_path), tmp_path, None, StopsAtOnce())
    assert not any(file.exists() for file in left)
    assert other.exists()


class StopsAtOnce(Noter):
    """Ends the training by force when the first step is done."""

    def step(self, *told):
        raise KeyboardInterrupt


def test_samples_and_companions_come_after_what_they_show_and_change_no_byte(
    asked, whole, tmp_path
):
    _, files = whole
    samples = {"prompts": "a circle\na square", "every": 4, "steps": 2, "size": 64, "seed": 9}
    words = {"out": str(tmp_path / "lora.safetensors"), "activation": "kaze"}
    plain = asked(tmp_path).to_dict()
    config = TrainConfig.from_dict(
        {**plain, "samples": samples, "saving": {**plain["saving"], **words}}
    )
    watcher = Noter()
    assert training.train(config, tmp_path, None, watcher).ending == "done"
    assert (tmp_path / "lora.safetensors").read_bytes() == files["lora.safetensors"]
    told = [(Path(file).name, step, seed) for file, step, _, seed in watcher.samples]
    assert told == [
        ("000004-00.png", 4, 9),
        ("000004-01.png", 4, 10),
        ("000006-00.png", 6, 9),
        ("000006-01.png", 6, 10),
    ]
    assert watcher.stages.index("sampling") > watcher.stages.index("training")
    drawn = {file.name: file.read_bytes() for file in (tmp_path / "samples").iterdir()}
    assert drawn["000004-00.png"] != drawn["000006-00.png"]
    assert (tmp_path / "lora.png").read_bytes() == drawn["000006-00.png"]
    assert json.loads((tmp_path / "lora.json").read_text()) == {"activation text": "kaze"}
    assert [n for n in watcher.notes if "sample" in n] == []


def test_a_resumed_training_draws_the_same_samples(asked, tmp_path):
    sections = {"prompts": "a circle", "every": 2, "steps": 2, "size": 64}
    drawn = []
    for name, watcher in (("whole", Noter()), ("parts", Noter(asks={3: "pause"}))):
        folder = tmp_path / name
        folder.mkdir()
        config = TrainConfig.from_dict({**asked(folder).to_dict(), "samples": sections})
        ending = training.train(config, folder, None, watcher).ending
        if ending == "paused":
            training.train(config, folder, None, Noter())
        files = [*(folder / "samples").iterdir(), folder / "lora.safetensors"]
        drawn.append({file.name: file.read_bytes() for file in files})
    assert len(drawn[0]) == 4
    assert drawn[0] == drawn[1]
