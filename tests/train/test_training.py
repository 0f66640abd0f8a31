"""A whole training in this process: the file it leaves, determinism, resuming, and what it says about the data."""

import json

import pytest
import torch
from PIL import Image

from lib_lora.errors import LoraError, UsageError
from lib_lora.formats.network_file import read_network
from lib_lora.networks.compose import compose
from lib_lora.train.training import train
from tests.tiny import tiny_checkpoint
from tests.train.asked import asked_config
from tests.train.pictures import make_pictures
from tests.train.test_loop import Teller

QUERY = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"


class Noter(Teller):
    """A watcher that keeps the notes, and asks something when a stage begins."""

    def __init__(self, asks=None, at_stage=None):
        super().__init__(asks)
        self.notes, self.stages, self.at_stage = [], [], dict(at_stage or {})
        self._asking = None

    def stage(self, name, step=0, total=0):
        self.stages.append(name)
        self._asking = self.at_stage.pop(name, None)

    def note(self, sentence):
        self.notes.append(sentence)

    def asked(self):
        return self._asking or (self.steps and super().asked()) or None

    def answer(self, result):
        if self._asking:
            self._asking = None
            self.answers.append(result)
        else:
            super().answer(result)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def asked(tiny_file, pictures, tmp_path_factory):
    """Return a configuration of a few steps that uses every feature, writing into a folder of its own."""

    def make(**sections):
        defaults = {
            "network": {"conv_rank": 2, "text_encoder": True},
            "data": {"caption_dropout": 0.3, "caption_orders": 3},
            "schedule": {"steps": 5, "batch": 1, "warmup": 2, "accumulate": 2},
            "optimizer": {"unet_rate": 1e-3, "text_encoder_rate": 1e-3},
        }
        out = tmp_path_factory.mktemp("out") / "lora.safetensors"
        return asked_config(tiny_file, pictures, out, **{**defaults, **sections})

    return make


def trained(config, run, watcher=None):
    return train(config, run, None, watcher or Noter())


@pytest.fixture(scope="module")
def whole(asked, tmp_path_factory):
    """An uninterrupted training, and who watched it."""
    watcher = Noter()
    return trained(asked(), tmp_path_factory.mktemp("run"), watcher), watcher


def test_the_file_fits_the_base_and_tells_of_its_making(whole, tiny):
    result, watcher = whole
    assert result.ending == "done"
    assert watcher.stages[-1] == "saving"
    file = read_network(result.file, tiny.checkpoint.layers, tiny.checkpoint.family.components)
    assert (file.dialect, file.unmatched) == ("kohya", ())
    assert len(file.layers) == 278 + 12
    assert all(float(n.tensors["lora_up.weight"].abs().max()) > 0 for n in file.layers.values())
    told = file.metadata
    assert (told["ss_steps"], told["ss_num_train_images"], told["ss_network_dim"]) == (
        "5",
        "4",
        "4",
    )
    assert (told["ss_unet_lr"], told["ss_seed"], told["ss_output_name"]) == ("0.001", "0", "lora")
    assert "number 3" in told["ss_tag_frequency"]
    assert json.loads(told["ss_network_args"]) == {"conv_dim": "2", "conv_alpha": "1"}
    assert not any("date" in key or "started" in key for key in told)
    assert "4 pictures, 2 of them with a caption." in watcher.notes


def test_equal_runs_give_equal_bytes_and_another_seed_others(asked, whole, tmp_path):
    expected = whole[0].file.read_bytes()
    assert trained(asked(), tmp_path / "again").file.read_bytes() == expected
    assert trained(asked(run={"seed": 1}), tmp_path / "other").file.read_bytes() != expected


@pytest.mark.parametrize("asks", ["pause", "stop"])
def test_a_resumed_run_gives_the_bytes_of_an_uninterrupted_one(asked, whole, tmp_path, asks):
    config = asked()
    first = trained(config, tmp_path, Noter({3: asks}))
    assert first.step == 3
    assert not config.saving.out.exists()
    assert len(list((tmp_path / "saves").iterdir())) == (asks == "stop")
    watcher = Noter()
    second = trained(config, tmp_path, watcher)
    assert watcher.steps[0][0] == 4
    assert second.file.read_bytes() == whole[0].file.read_bytes()
    assert second.validations == whole[0].validations


def test_what_was_changed_since_a_pause_is_told(tmp_path):
    """The losses after it are not those before it, which nothing else would explain."""
    base, data = tiny_checkpoint(tmp_path), make_pictures(tmp_path / "data", 2)
    config = asked_config(base, data, tmp_path / "lora.safetensors", schedule={"steps": 8})

    def notes(step):
        watcher = Noter({step: "pause"})
        assert trained(config, tmp_path, watcher).step == step
        return [note for note in watcher.notes if "since step" in note]

    assert notes(1) == notes(2) == []
    (data / "0.txt").write_text("a ring", "utf-8")
    goes_on = "It goes on with what is there now."
    told = [f"Changed since step 2: the pictures or their captions. {goes_on}"]
    assert (notes(3), notes(4)) == (told, [])
    tiny_checkpoint(tmp_path, seed=1).replace(base)
    assert notes(5) == [f"Changed since step 4: the base model. {goes_on}"]


def test_a_state_of_another_network_is_a_sentence(asked, tmp_path):
    trained(asked(), tmp_path, Noter({1: "pause"}))
    for other in (
        {"rank": 5},
        {"text_encoder": False, "unet": True, "conv_rank": 0},
        {"type": "ia3"},
    ):
        with pytest.raises(LoraError, match="state after step 1 is that of another network"):
            trained(asked(network=other), tmp_path)


def test_only_what_is_asked_for_is_trained(asked, tiny, tmp_path):
    config = asked(network={"unet": False, "text_encoder": True}, schedule={"steps": 1})
    result = trained(config, tmp_path / "run")
    file = read_network(result.file, tiny.checkpoint.layers, tiny.checkpoint.family.components)
    assert {id_.split(".")[0] for id_ in file.layers} == {"te1"}


def test_precision_and_dialect_of_the_file(asked, tiny, tmp_path):
    saving = {"dtype": "bf16", "dialect": "diffusers"}
    result = trained(asked(saving=saving, schedule={"steps": 1}), tmp_path / "run")
    file = read_network(result.file, tiny.checkpoint.layers, tiny.checkpoint.family.components)
    assert file.dialect == "diffusers"
    assert {n.tensors["lora_down.weight"].dtype for n in file.layers.values()} == {torch.bfloat16}


CHOICES = {
    "lora": ({"dora": True}, "dora-lora", "locon"),
    "loha": ({"tucker": True}, "loha", "loha"),
    "lokr": ({"factor": 4}, "lokr", "lokr"),
    "ia3": ({}, "ia3", "ia3"),
}
SAVED_AS_ASKED = {
    "lora": ("lora_down.weight", "lora_up.weight"),
    "loha": ("hada_w1_a", "hada_w2_b"),
    "lokr": ("lokr_w1",),
    "ia3": ("weight",),
}


@pytest.mark.parametrize("type_", CHOICES)
def test_a_network_of_another_type_is_read_back_as_it_was_trained(asked, tiny, tmp_path, type_):
    choices, read_as, algorithm = CHOICES[type_]
    network = {"type": type_, "conv_rank": 2, "text_encoder": True, **choices}
    config = asked(network=network, schedule={"steps": 2, "batch": 1}, saving={"dtype": "fp16"})
    result = trained(config, tmp_path / "run")
    base = tiny.checkpoint
    file = read_network(result.file, base.layers, base.family.components)
    assert (file.dialect, file.unmatched) == ("kohya", ())
    assert {network.type.id for network in file.layers.values()} == {read_as}
    assert {id_.split(".")[0] for id_ in file.layers} == {"unet", "te1"}
    tensors = file.layers[QUERY].tensors
    assert {tensors[suffix].dtype for suffix in SAVED_AS_ASKED[type_]} == {torch.float16}
    if type_ == "lora":  # rounded magnitudes would move the base's own rows
        assert tensors["dora_scale"].dtype == torch.float32
    assert json.loads(file.metadata["ss_network_args"])["algo"] == algorithm
    assert file.metadata["ss_network_module"] == "lycoris.kohya"
    weight = tiny.denoiser.get_submodule(QUERY.removeprefix("unet.")).weight.double()
    change = compose(weight, [(file.layers[QUERY], 1.0)]).weight
    assert float(change.abs().max()) > 1e-6


def test_leaving_before_the_first_step(asked, tmp_path):
    watcher = Noter(at_stage={"pictures": "stop"})
    result = trained(asked(), tmp_path / "run", watcher)
    assert (result.ending, result.step, result.file) == ("stopped", 0, None)
    assert watcher.answers == ["Left before the first step."]
    assert "training" not in watcher.stages


def test_what_is_wrong_with_the_data_is_told(asked, tiny_file, tmp_path):
    data = make_pictures(tmp_path / "data", 2)
    (data / "broken.png").write_bytes(b"no picture")
    (data / "long.txt").write_text("word " * 100, "utf-8")
    Image.new("RGB", (64, 64)).save(data / "long.png")
    watcher = Noter()
    config = asked_config(tiny_file, data, tmp_path / "lora.safetensors", schedule={"steps": 1})
    trained(config, tmp_path / "run", watcher)
    told = "\n".join(watcher.notes)
    assert "3 pictures, 2 of them with a caption." in told
    assert "Left out: broken.png cannot be read as a picture" in told
    assert "Longer than 75 tokens" in told


def test_only_damaged_pictures_are_refused_by_name(tiny_file, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broken.png").write_bytes(b"no picture")
    config = asked_config(tiny_file, tmp_path / "data", tmp_path / "lora.safetensors")
    with pytest.raises(LoraError, match=r"No picture can be read. broken.png"):
        trained(config, tmp_path / "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(asked, tmp_path):
    with pytest.raises(UsageError, match="no CUDA device"):
        trained(asked(run={"device": "cuda"}), tmp_path / "run")
