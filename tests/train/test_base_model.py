"""Loading a base model: the same weights as the modules that were saved, and configurations from three places."""

import json
import logging
import shutil

import pytest
import torch

from lib_lora.errors import FileFormatError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.train.base_model import live_modules, load_base_model
from lib_lora.train.model_configs import describe_model
from lib_lora.train.model_shapes import configs_from_shapes
from tests.tiny import CONFIG, tiny_components

TINY_HEADS, OTHER_HEADS, SD15_HEADS = 4, 16, 8


def heads(configs):
    return configs["unet"]["attention_head_dim"], configs["te1"]["num_attention_heads"]


def find_configs(checkpoint, folder=None):
    return describe_model(checkpoint, folder).configs


@pytest.fixture
def alone(tiny_file, tmp_path):
    """The random base model in a folder of its own."""
    return shutil.copy(tiny_file, tmp_path / "base.safetensors")


def test_weights_are_those_that_were_saved(tiny):
    for name, saved in tiny_components().items():
        loaded = tiny.modules()[name].state_dict()
        for key, tensor in saved.state_dict().items():
            assert torch.equal(loaded[key], tensor), key
        assert not any(p.requires_grad for p in tiny.modules()[name].parameters())


def test_a_file_with_the_embedded_models_shapes_has_its_heads_wherever_it_lies(tiny, alone):
    base = load_base_model(open_checkpoint(alone))
    assert base.denoiser.config.attention_head_dim == TINY_HEADS
    for name, module in tiny.modules().items():
        loaded = base.modules()[name].state_dict()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in module.state_dict().items())


def test_a_text_encoder_without_the_wrapper_in_its_keys_is_the_same(tiny, alone):
    with TensorReader(alone) as reader:
        tensors = {key: reader.read(key).clone() for key in reader.header.tensors}
    write_tensors(alone, {key.replace("text_model.", ""): t for key, t in tensors.items()}, {})
    found = load_base_model(open_checkpoint(alone)).text_encoders["te1"].state_dict()
    usual = tiny.text_encoders["te1"].state_dict()
    assert found.keys() == usual.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in usual.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_loading_says_nothing(alone, caplog, monkeypatch, dtype):
    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)
    load_base_model(open_checkpoint(alone), dtype=dtype)
    assert not caplog.records


def test_every_layer_has_its_live_module(tiny):
    found = live_modules(tiny.modules(), tiny.checkpoint.layers)
    assert found.keys() == tiny.checkpoint.layers.keys()
    for id_, layer in tiny.checkpoint.layers.items():
        assert tuple(found[id_].weight.shape) == layer.shape, id_


def test_shapes_that_nothing_describes_have_sd15s_heads(tiny):
    assert heads(configs_from_shapes(tiny.checkpoint)) == (SD15_HEADS, 1)


def test_shapes_tell_all_that_the_bundled_folder_says(tiny):
    derived = configs_from_shapes(tiny.checkpoint)
    for part, config in derived.items():
        folder = {"te1": "text_encoder"}.get(part, part)
        told = json.loads((CONFIG / folder / "config.json").read_text())
        different = {key for key in config if key in told and told[key] != config[key]}
        assert different <= {"attention_head_dim", "num_attention_heads", "sample_size"}, part


def test_a_folder_beside_the_file_is_used_only_if_it_fits(alone):
    folder = shutil.copytree(CONFIG, alone.parent / "model")
    config = json.loads((folder / "unet" / "config.json").read_text())
    config["attention_head_dim"] = OTHER_HEADS
    (folder / "unet" / "config.json").write_text(json.dumps(config))
    assert heads(find_configs(open_checkpoint(alone))) == (OTHER_HEADS, TINY_HEADS)
    config["block_out_channels"][0] = 320
    (folder / "unet" / "config.json").write_text(json.dumps(config))
    assert heads(find_configs(open_checkpoint(alone))) == (TINY_HEADS, TINY_HEADS)
    with pytest.raises(FileFormatError, match=r"describes another model.*block_out_channels"):
        find_configs(open_checkpoint(alone), folder)


def test_a_sidecar_tells_the_heads(alone):
    alone.with_suffix(".yaml").write_text(
        "model:\n  params:\n    unet_config:\n      params: {num_heads: 2}\n"
        f"    cond_stage_config:\n      params: {{version: '{CONFIG / 'text_encoder'}'}}\n"
    )
    assert heads(find_configs(open_checkpoint(alone))) == (2, TINY_HEADS)
    for other in (b"model: nothing", b"model: [", "model: {}".encode("utf-16"), b"caf\xe9", b""):
        alone.with_suffix(".yaml").write_bytes(other)
        with pytest.raises(FileFormatError, match="no model configuration of the WebUI"):
            find_configs(open_checkpoint(alone))


def test_a_folder_without_configurations_is_refused(alone, tmp_path):
    with pytest.raises(FileFormatError, match=r"holds unet/config\.json"):
        find_configs(open_checkpoint(alone), tmp_path)
