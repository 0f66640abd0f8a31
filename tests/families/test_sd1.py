"""The layers of SD1 against the recorded checkpoint, the recorded diffusers converter and the recorded kohya targets."""

import pytest

from lib_lora.families.sd1 import SD1
from tests.golden_data import golden, shapes_of

FACTS = golden("sd15")
SHAPES = shapes_of(FACTS["original"])
# Block names of the 26-value block weights: 12 input blocks, the middle, 12 output blocks, and BASE for text encoders.
BLOCKS = {"BASE", "M00", *(f"{way}{n:02}" for way in ("IN", "OUT") for n in range(12))}


@pytest.fixture(scope="module")
def layers():
    return SD1.layers(SHAPES)


def test_every_tensor_of_the_checkpoint_has_one_place(layers):
    placed = [layer.weight.key for layer in layers.values()]
    placed += [layer.bias.key for layer in layers.values() if layer.bias]
    assert len(placed) == len(set(placed))
    assert set(placed) == SHAPES.keys() - set(FACTS["buffers"])


@pytest.mark.parametrize("component", ["unet", "te1", "vae"])
def test_placement_equals_that_of_the_diffusers_converter(layers, component):
    ours = {}
    for layer in layers.values():
        if layer.component == component:
            ours[f"{layer.path}.weight"] = layer.weight.key
            if layer.bias:
                ours[f"{layer.path}.bias"] = layer.bias.key
    assert ours == {key: place[0] for key, place in FACTS["mapping"][component].items()}


def test_shapes_are_those_of_diffusers(layers):
    for component, mapping in FACTS["mapping"].items():
        for key, place in mapping.items():
            if key.endswith(".weight"):
                layer = layers[f"{component}.{key.removesuffix('.weight')}"]
                squeezed = place[1]["squeeze"] if len(place) > 1 else SHAPES[place[0]]
                assert layer.shape == tuple(squeezed), key


def test_the_default_targets_are_kohyas(layers):
    ours = {id for id, layer in layers.items() if layer.path.endswith(SD1.trained_by_default)}
    kohya = {".".join(FACTS["kohya"][name][:2]) for name in FACTS["kohya_default"]}
    assert ours == kohya
    assert len(ours) == 72 + 192


def test_blocks_follow_the_original_block_numbers(layers):
    assert {layer.block for layer in layers.values()} == BLOCKS | {None}
    ways = {"input_blocks": "IN", "output_blocks": "OUT"}
    for layer in layers.values():
        inner = layer.weight.key.removeprefix("model.diffusion_model.")
        kind, number = inner.split(".")[:2]
        if kind in ways:
            assert layer.block == f"{ways[kind]}{int(number):02}"
