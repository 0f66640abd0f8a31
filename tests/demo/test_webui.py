import json
from pathlib import Path

import pytest
import yaml

from lib_lora.demo.webui import CLIP_DIR, MODEL_DIR, sidecar, write_webui_folder


@pytest.fixture
def params():
    return yaml.safe_load(sidecar())["model"]["params"]


def widths(first, multiples):
    return [first * multiple for multiple in multiples]


def test_the_sidecar_states_the_widths_of_the_embedded_model(params):
    """The original code takes a first width and whole multiples of it; diffusers' configuration lists the products."""
    unet, vae = (
        json.loads((MODEL_DIR / name / "config.json").read_text()) for name in ("unet", "vae")
    )
    told = params["unet_config"]["params"]
    assert widths(told["model_channels"], told["channel_mult"]) == unet["block_out_channels"]
    assert told["num_heads"] == unet["attention_head_dim"]
    assert told["context_dim"] == unet["cross_attention_dim"]
    assert (told["transformer_depth"], told["attention_resolutions"]) == (1, [4, 2, 1])
    told = params["first_stage_config"]["params"]["ddconfig"]
    assert widths(told["ch"], told["ch_mult"]) == vae["block_out_channels"]
    assert all(isinstance(multiple, int) and multiple > 0 for multiple in told["ch_mult"])
    assert told["num_res_blocks"] == vae["layers_per_block"]
    assert params["scale_factor"] == vae["scaling_factor"]


def test_the_classes_are_those_that_version_1_10_1_imports(params):
    assert params["unet_config"]["target"] == "ldm.modules.diffusionmodules.openaimodel.UNetModel"
    assert params["first_stage_config"]["target"] == "ldm.models.autoencoder.AutoencoderKL"
    text = params["cond_stage_config"]["target"]
    assert text == "ldm.modules.encoders.modules.FrozenCLIPEmbedder"


def test_the_clip_folder_is_absolute_and_whole(params):
    folder = Path(params["cond_stage_config"]["params"]["version"])
    assert folder.is_absolute()
    assert {"config.json", "vocab.json", "merges.txt"} <= {file.name for file in folder.iterdir()}
    config = json.loads((folder / "config.json").read_text())
    assert config == json.loads((MODEL_DIR / "text_encoder" / "config.json").read_text())


def test_a_path_with_odd_characters_stays_itself(tmp_path):
    folder = tmp_path / 'a "quoted": #1 \\ é'
    folder.mkdir()
    model = yaml.safe_load(sidecar(folder))["model"]
    assert model["params"]["cond_stage_config"]["params"]["version"] == str(folder)


def test_the_folder_holds_a_copy_and_its_sidecar_and_nothing_else(tmp_path):
    checkpoint = tmp_path / "base.safetensors"
    checkpoint.write_bytes(b"weights")
    copy = write_webui_folder(checkpoint, tmp_path / "webui")
    assert {file.name for file in copy.parent.iterdir()} == {"base.safetensors", "base.yaml"}
    assert copy.read_bytes() == b"weights"
    assert str(CLIP_DIR) in copy.with_suffix(".yaml").read_text()
