"""Loading models of every family: the weights that were saved, the structure of the released ones, and what is said of them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import detect_family
from lib_lora.families.sd2 import SD2, SD2_EPSILON
from lib_lora.formats.checkpoint import Checkpoint, open_checkpoint
from lib_lora.formats.original import to_original
from lib_lora.formats.stream import write_tensors
from lib_lora.train.base_model import (
    live_modules,
    load_base_model,
    variant_of,
)
from lib_lora.train.denoise import settled
from lib_lora.train.model_configs import EMBEDDED, describe_model
from lib_lora.train.model_modules import DENOISERS, ENCODERS
from lib_lora.train.model_shapes import configs_from_shapes
from tests.families import recorded
from tests.train import families

TRAINED = ("sd21-v", "sdxl-base", "sd3-medium", "sd35-medium", "sd35-large")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: families.checkpoint(folder, name) for name in families.KINDS}


@pytest.mark.parametrize("name", families.KINDS)
def test_weights_are_those_that_were_saved(files, name, tmp_path):
    folder = families.t5_tokenizer(tmp_path) if name == "sd3" else None
    base = load_base_model(open_checkpoint(files[name]), folder) if folder is None else None
    if base is None:  # a folder with a tokenizer alone describes no model
        families.write_configs(tmp_path, name)
        base = load_base_model(open_checkpoint(files[name]), folder)
    saved = families.modules(name)
    assert base.modules().keys() == saved.keys()
    for component, module in base.modules().items():
        expected, found = saved[component].state_dict(), module.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items()), component
        assert not any(p.requires_grad or p.is_meta for p in module.parameters())
        assert not any(buffer.is_meta for buffer in module.buffers())
        assert not module.training
    layers = live_modules(base.modules(), base.checkpoint.layers)
    assert layers.keys() == base.checkpoint.layers.keys()
    for id_, layer in base.checkpoint.layers.items():
        assert tuple(layers[id_].weight.shape) == layer.shape, id_


@pytest.mark.parametrize("name", TRAINED)
def test_the_released_models_have_the_tensors_that_the_converter_reads(name):
    shapes = recorded.shapes(name)
    family = detect_family(shapes)
    file = Checkpoint(None, SimpleNamespace(shapes=shapes), family, family.layers(shapes))
    if not any(key.startswith("first_stage_model.") for key in shapes):
        file.layers.update(sd3_vae())
    makers = {family.denoiser.component: DENOISERS[family.denoiser.kind]}
    for each in family.text_encoders:
        makers[each.component] = ENCODERS[each.kind, each.pooled == "projected"]
    configs = configs_from_shapes(file)
    expected = set(recorded.places(name))
    for component, config in configs.items():
        if component == "vae":
            continue
        with torch.device("meta"):
            module = makers[component](config)
        keys = {key for key in module.state_dict() if not key.endswith("position_ids")}
        told = {key.partition(".")[2] for key in expected if key.startswith(f"{component}.")}
        wrapped = {key if key in told else f"text_model.{key}" for key in keys}
        # The converter gives CLIP-L a projection that nothing reads.
        assert wrapped == told - {"text_projection.weight"} | (
            wrapped & {"text_projection.weight"}
        ), component
        for id_, live in live_modules({component: module}, file.layers).items():
            assert tuple(live.weight.shape) == file.layers[id_].shape, id_


def sd3_vae():
    """The layers of the autoencoder that the recorded SD3.5 transformers lack."""
    shapes = recorded.shapes("sd3-medium")
    layers = detect_family(shapes).layers(shapes)
    return {id_: layer for id_, layer in layers.items() if layer.component == "vae"}


def test_heads_of_the_released_models():
    def heads(name, component, key):
        shapes = recorded.shapes(name)
        family = detect_family(shapes)
        layers = {**family.layers(shapes), **sd3_vae()} if "sd35" in name else family.layers(shapes)
        return configs_from_shapes(
            Checkpoint(None, SimpleNamespace(shapes=shapes), family, layers)
        )[component][key]

    # From the configurations of the released models on the hub, as /stable-diffusion-2-1, -xl-base-1.0, -3-medium, -3.5-medium have them.
    assert heads("sd21-v", "unet", "attention_head_dim") == [5, 10, 20, 20]
    assert heads("sd21-v", "te1", "num_attention_heads") == 16
    assert heads("sdxl-base", "unet", "attention_head_dim") == [5, 10, 20]
    assert heads("sdxl-base", "unet", "transformer_layers_per_block") == [1, 2, 10]
    assert heads("sdxl-base", "unet", "addition_time_embed_dim") == 256
    assert heads("sdxl-base", "te2", "num_attention_heads") == 20
    assert heads("sd3-medium", "transformer", "num_attention_heads") == 24
    assert heads("sd3-medium", "transformer", "pos_embed_max_size") == 192
    assert heads("sd3-medium", "te3", "num_heads") == 64
    assert heads("sd35-medium", "transformer", "dual_attention_layers") == list(range(13))
    assert heads("sd35-large", "transformer", "num_attention_heads") == 38


def told(file, prediction="auto"):
    """Return the variant of a family that a file is of, by what is said of it."""
    checkpoint = open_checkpoint(file)
    return variant_of(checkpoint, describe_model(checkpoint), prediction)


def test_what_a_model_predicts_is_told_by_the_person_the_sidecar_or_the_checkpoint(files, tmp_path):
    alone = Path(shutil.copy(files["sd2"], tmp_path))
    assert told(alone) == SD2
    assert told(alone, "epsilon") == SD2_EPSILON
    sidecar = alone.with_suffix(".yaml")
    sidecar.write_text("model: {params: {parameterization: eps}}")
    assert told(alone) == SD2_EPSILON
    assert told(alone, "v") == SD2
    sidecar.write_text(
        "model: {params: {parameterization: v, unet_config: {params: {num_head_channels: 16}}}}"
    )
    assert told(alone) == SD2
    configs = describe_model(open_checkpoint(alone)).configs
    assert configs["unet"]["attention_head_dim"] == [2, 2, 4, 8]
    xl = Path(shutil.copy(files["sdxl"], tmp_path))
    assert told(xl).objective == "epsilon"
    assert told(xl, "v").objective == "v"
    target = "sgm.modules.diffusionmodules.denoiser_scaling.VScaling"
    xl.with_suffix(".yaml").write_text(
        f"model: {{params: {{denoiser_config: {{params: {{scaling_config: {{target: {target}}}}}}}}}}}"
    )
    assert told(xl).objective == "v"
    assert told(files["sd3"], "v").objective == "flow"


def test_markers_tell_v_and_a_schedule_that_ends_in_noise(tmp_path):
    base = load_base_model(
        open_checkpoint(families.checkpoint(tmp_path, "sdxl", extra=("v_pred", "ztsnr")))
    )
    assert (base.checkpoint.family.objective, base.zero_terminal) == ("v", True)


def test_a_configuration_folder_tells_the_prediction_too(files, tmp_path):
    families.write_configs(tmp_path, "sd2")
    (tmp_path / "scheduler").mkdir()
    told = {"prediction_type": "epsilon", "rescale_betas_zero_snr": True}
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(told))
    base = load_base_model(open_checkpoint(files["sd2"]), tmp_path)
    assert (base.checkpoint.family, base.zero_terminal) == (SD2_EPSILON, True)


def test_sd3_goes_without_t5_but_not_without_clip(files, tmp_path):
    file = families.checkpoint(tmp_path, "sd3", without=("te3",))
    base = load_base_model(open_checkpoint(file))
    assert base.text_encoders.keys() == {"te1", "te2"}
    assert base.notes == ("Trained without the T5 text encoder: the checkpoint has none.",)
    # Its tokenizer comes from a folder alone.
    base = load_base_model(open_checkpoint(files["sd3"]))
    assert base.text_encoders.keys() == {"te1", "te2"}
    assert "model.config names no folder with its tokenizer_3" in base.notes[0]
    bare = families.checkpoint(tmp_path, "sd3", without=("te1", "te2", "te3"))
    with pytest.raises(FileFormatError, match=r"lacks text_encoder, text_encoder_2"):
        load_base_model(open_checkpoint(bare))


def layouts(state):
    """The three ways in which files hold an autoencoder."""
    family = families.KINDS["sd1"].family
    prefixed = {
        key: tensor.contiguous()
        for key, tensor in to_original({"vae": state, "unet": {}, "te1": {}}, family).items()
        if key.startswith("first_stage_model.")
    }
    bare = {key.removeprefix("first_stage_model."): tensor for key, tensor in prefixed.items()}
    return {"prefixed": prefixed, "bare": bare, "diffusers": state}


@pytest.mark.parametrize("layout", ["prefixed", "bare", "diffusers"])
def test_another_vae_takes_the_place_of_the_checkpoints(files, tmp_path, layout):
    other = families.modules("sd1", seed=5)["vae"]
    file = tmp_path / "vae.safetensors"
    write_tensors(file, layouts(other.state_dict())[layout], {})
    base = load_base_model(open_checkpoint(files["sd1"]), vae=file)
    found = base.vae.state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in other.state_dict().items())
    own = families.modules("sd1")["vae"].state_dict()
    assert not all(torch.equal(found[key], tensor) for key, tensor in own.items())


def test_what_is_no_vae_is_refused(files, tmp_path):
    write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(FileFormatError, match="holds no autoencoder"):
        load_base_model(open_checkpoint(files["sd1"]), vae=tmp_path / "x.safetensors")


def test_the_vae_of_sdxl_computes_in_float32_whatever_the_rest_does(files):
    """Its activations overflow float16: "NaN detected in latents"."""
    for name, expected in (("sdxl", torch.float32), ("sd1", torch.float16)):
        base = load_base_model(open_checkpoint(files[name]), dtype=torch.float16)
        assert base.vae.dtype == expected
        assert base.denoiser.dtype == torch.float16
        assert {encoder.dtype for encoder in base.text_encoders.values()} == {torch.float16}


def test_a_model_that_cannot_be_trained_is_refused(tmp_path):
    file = families.checkpoint(tmp_path, "sd1")
    found = open_checkpoint(file)
    bare = Checkpoint(
        found.path, found.header, detect_family(recorded.small("sdxl-refiner")), found.layers
    )
    with pytest.raises(FileFormatError, match="refiner checkpoint, which can be neither trained"):
        load_base_model(bare)


def test_what_nothing_tells_is_asked_of_the_model_itself(files):
    """The embedded model was trained to predict the noise, and says so; random weights answer nothing like the noise."""
    embedded = load_base_model(open_checkpoint(EMBEDDED.parent / "base.safetensors"))
    asked = settled(replace(embedded, untold=True))
    assert asked.checkpoint.family.objective == "epsilon"
    random = load_base_model(open_checkpoint(files["sd2"]))
    assert random.untold
    found = settled(random)
    assert found.checkpoint.family == SD2
    assert found.notes == (
        "Nothing says what this model predicts; it answers as one that predicts v.",
    )
    told = load_base_model(open_checkpoint(files["sd2"]), prediction="epsilon")
    assert settled(told) is told
    assert not load_base_model(open_checkpoint(files["sd1"])).untold
