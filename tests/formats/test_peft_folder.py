"""PEFT's own folders: read as PEFT saves them, written so that PEFT loads them, both at the trained strength."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from lib_lora.errors import FileFormatError, UnmatchedError, UsageError
from lib_lora.families.sd1 import SD1
from lib_lora.families.table import Layer, Placement
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP

WIDTH = 6
PATHS = ("conv_in", "mid_block.attentions.0.proj_in", "time_embedding.linear_1")
SHAPES = ((WIDTH, 4, 3, 3), (WIDTH, WIDTH), (WIDTH, WIDTH))
UNET = {
    f"unet.{path}": Layer("unet", path, Placement(path), None, shape)
    for path, shape in zip(PATHS, SHAPES, strict=True)
}
TEXT = "te1.text_model.encoder.layers.0.mlp.fc1"
LAYERS = UNET | {
    TEXT: Layer("te1", TEXT.removeprefix("te1."), Placement("fc1"), None, (WIDTH, WIDTH))
}


def model():
    """Return modules by the names of three layers of a UNet."""
    torch.manual_seed(0)
    root = nn.Module()
    root.conv_in = nn.Conv2d(4, WIDTH, 3)
    root.mid_block = nn.Module()
    root.mid_block.attentions = nn.ModuleList([nn.Module()])
    root.mid_block.attentions[0].proj_in = nn.Linear(WIDTH, WIDTH)
    root.time_embedding = nn.Module()
    root.time_embedding.linear_1 = nn.Linear(WIDTH, WIDTH)
    return root.double()


def changes(adapted):
    """Return by layer id what a PEFT model adds to its weights, as PEFT merges it."""
    before = model().state_dict()
    after = adapted.merge_and_unload().state_dict()
    return {f"unet.{path}": after[f"{path}.weight"] - before[f"{path}.weight"] for path in PATHS}


def delta(network, layer_id):
    base = torch.zeros(LAYERS[layer_id].shape, dtype=torch.float64)
    return compose(base, [(network.layers[layer_id], 1.0)]).weight


def saved(folder, **options):
    """Save a random adapter as PEFT does and return what it adds."""
    config = LoraConfig(
        **{"r": 2, "lora_alpha": 3, "target_modules": ["conv_in", "proj_in", "linear_1"], **options}
    )
    adapted = get_peft_model(model(), config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)
    adapted.save_pretrained(folder)
    return changes(adapted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha_pattern": {"proj_in": 5}, "rank_pattern": {"conv_in": 4}},
        {"alpha_pattern": {r".*\.linear_\d+": 5}},
        {"use_rslora": True, "rank_pattern": {"conv_in": 4}},
    ],
    ids=["plain", "patterns", "expression", "rslora"],
)
def test_a_folder_of_pefts_is_read_at_its_own_strength(tmp_path, options):
    expected = saved(tmp_path / "style", **options)
    network = read_network(tmp_path / "style", LAYERS, SD1.components)
    assert (network.name, network.dialect, network.unmatched) == ("style", "peft", ())
    assert network.layers.keys() == UNET.keys()
    for layer_id, change in expected.items():
        torch.testing.assert_close(delta(network, layer_id), change, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(delta(network, layer_id), 1.05 * change, rtol=1e-3)


def test_the_file_of_a_folder_finds_its_configuration(tmp_path):
    saved(tmp_path / "style")
    network = read_network(tmp_path / "style" / "adapter_model.safetensors", LAYERS, SD1.components)
    assert {float(part.tensors[ALPHA]) for part in network.layers.values()} == {3.0}


@pytest.mark.filterwarnings("ignore:Adapter 'default'")  # PEFT takes a bias for a broken matrix
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"alpha_pattern": {"conv_in": 5}}])
def test_the_bias_of_a_lora_is_scaled_as_peft_does(tmp_path, options):
    config = LoraConfig(
        **{"r": 2, "lora_alpha": 3, "target_modules": ["conv_in", "proj_in", "linear_1"]},
        **{"lora_bias": True, **options},
    )
    adapted = get_peft_model(model(), config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path / "style")
    before, after = model().state_dict(), adapted.merge_and_unload().state_dict()
    layers = {
        id_: Layer("unet", layer.path, layer.weight, Placement(f"{id_}.bias"), layer.shape)
        for id_, layer in UNET.items()
    }
    network = read_network(tmp_path / "style", layers, SD1.components)
    assert (network.unmatched, network.layers.keys()) == ((), layers.keys())
    for layer_id, layer in layers.items():
        base = before[f"{layer.path}.weight"]
        found = compose(base, [(network.layers[layer_id], 1.0)])
        for kind, change in (("weight", found.weight), ("bias", found.bias)):
            right = after[f"{layer.path}.{kind}"] - before[f"{layer.path}.{kind}"]
            torch.testing.assert_close(change, right, rtol=1e-6, atol=1e-6)
            assert not torch.allclose(1.05 * change, right, rtol=1e-3)


def with_dora(tensors):
    generator = torch.Generator().manual_seed(8)
    return {
        layer_id: {
            **parts,
            "dora_scale": torch.rand(
                (WIDTH, *(1 for _ in LAYERS[layer_id].shape[1:])), generator=generator
            ).double(),
        }
        for layer_id, parts in tensors.items()
    }


def test_peft_loads_dora_as_it_is_written(tmp_path):
    tensors = with_dora(a_network(UNET))
    write_network(tmp_path / "style", tensors, LAYERS, SD1.components, "peft")
    network = read_network(tmp_path / "style", LAYERS, SD1.components)
    loaded = changes(PeftModel.from_pretrained(model(), str(tmp_path / "style")))
    before = model().state_dict()
    for layer_id in tensors:
        base = before[f"{layer_id.removeprefix('unet.')}.weight"]
        change = compose(base, [(network.layers[layer_id], 1.0)]).weight
        torch.testing.assert_close(loaded[layer_id], change, rtol=1e-6, atol=1e-6)
        assert change.abs().max() > 0.1


def test_dora_that_peft_cannot_have_is_refused_by_name(tmp_path):
    tensors = with_dora(a_network(UNET))
    linear = "unet.time_embedding.linear_1"
    per_input = {**tensors[linear], "dora_scale": torch.ones(1, WIDTH)}
    without = {suffix: part for suffix, part in tensors[linear].items() if suffix != "dora_scale"}
    for parts, reason in ((per_input, "per output"), (without, "all layers or on none")):
        with pytest.raises(UsageError, match=rf"{reason}.*{linear}"):
            write_network(
                tmp_path / "x", {**tensors, linear: parts}, LAYERS, SD1.components, "peft"
            )


def a_network(layers):
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for number, (layer_id, layer) in enumerate(layers.items()):
        out, inputs, *kernel = layer.shape
        rank = 2 + number
        tensors[layer_id] = {
            DOWN: torch.randn(rank, inputs, *kernel, generator=generator, dtype=torch.float64),
            UP: torch.randn(out, rank, *(1 for _ in kernel), generator=generator).double(),
            ALPHA: torch.tensor(1.0 + number),
        }
    return tensors


def test_peft_loads_what_is_written(tmp_path):
    tensors = a_network(UNET)
    write_network(tmp_path / "style", tensors, LAYERS, SD1.components, "peft")
    loaded = changes(PeftModel.from_pretrained(model(), str(tmp_path / "style")))
    for layer_id, parts in tensors.items():
        scale = float(parts[ALPHA]) / len(parts[DOWN])
        product = scale * parts[UP].flatten(1) @ parts[DOWN].flatten(1)
        change = loaded[layer_id].flatten(1)
        torch.testing.assert_close(change, product, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(change, 1.05 * product, rtol=1e-3)


def test_two_models_are_two_folders_and_no_file(tmp_path):
    tensors = a_network(LAYERS)
    write_network(tmp_path / "style", tensors, LAYERS, SD1.components, "peft")
    assert sorted(path.name for path in (tmp_path / "style").iterdir()) == ["text_encoder", "unet"]
    network = read_network(tmp_path / "style", LAYERS, SD1.components)
    assert network.layers.keys() == tensors.keys()
    assert network.unmatched == ()
    with pytest.raises(UsageError, match="text_encoder and unet"):
        write_network(tmp_path / "x.safetensors", tensors, LAYERS, SD1.components, "peft")
    assert not (tmp_path / "x.safetensors").exists()


def test_a_file_of_one_model_is_pefts_too(tmp_path):
    file = tmp_path / "x.safetensors"
    tensors = a_network(UNET)
    write_network(file, tensors, LAYERS, SD1.components, "peft")
    network = read_network(file, LAYERS, SD1.components)
    assert (network.dialect, network.layers.keys()) == ("peft", tensors.keys())
    for layer_id, parts in tensors.items():
        assert float(network.layers[layer_id].tensors[ALPHA]) == float(parts[ALPHA])


def test_a_folder_is_only_written_anew(tmp_path):
    (tmp_path / "style").mkdir()
    with pytest.raises(UsageError, match="style"):
        write_network(tmp_path / "style", a_network(UNET), LAYERS, SD1.components, "peft")
    assert list(tmp_path.iterdir()) == [tmp_path / "style"]


def test_a_folder_of_another_familys_models_is_refused(tmp_path):
    # The text encoder alone would fit SDXL as well, and the UNet would be left out without a word.
    folder = tmp_path / "style"
    write_network(folder, a_network(LAYERS), LAYERS, SD1.components, "peft")
    (folder / "unet").rename(folder / "transformer")
    with pytest.raises(UnmatchedError, match="changes a model transformer, which this base has"):
        read_network(folder, LAYERS, SD1.components)


def test_folders_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(FileFormatError, match="adapter_model"):
        read_network(tmp_path, LAYERS, SD1.components)
    saved(tmp_path / "style")
    config = tmp_path / "style" / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "LOHA"}))
    with pytest.raises(FileFormatError, match="LOHA"):
        read_network(tmp_path / "style", LAYERS, SD1.components)
    config.write_text("[")
    with pytest.raises(FileFormatError, match="alphas"):
        read_network(tmp_path / "style", LAYERS, SD1.components)
    config.unlink()
    with pytest.raises(FileFormatError, match="no adapter_config"):
        read_network(tmp_path / "style", LAYERS, SD1.components)
