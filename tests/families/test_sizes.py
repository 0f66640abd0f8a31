"""The published sizes against the recorded checkpoints: every layer, its shape and whether it has a bias."""

import math

import pytest

from lib_lora.families.sizes import PUBLISHED
from tests.families.recorded import shapes
from tests.golden_data import golden, shapes_of

RECORDED = {
    "sd1": lambda: shapes_of(golden("sd15")["original"]),
    "sd2": lambda: shapes("sd21-v"),
    "sdxl": lambda: shapes("sdxl-base"),
    "sd3": lambda: shapes("sd3-medium"),
    "sd3.5-medium": lambda: shapes("sd35-medium"),
    "sd3.5-large": lambda: shapes("sd35-large"),
}
# The recorded files of 3.5 hold the transformer alone.
PARTS = {"sd3.5-medium": ("transformer",), "sd3.5-large": ("transformer",)}


def described(layers, components):
    return {
        id_: (layer.shape, layer.bias is not None)
        for id_, layer in layers.items()
        if layer.component in components
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_layers_are_those_of_the_recorded_checkpoint(name):
    published, recorded = PUBLISHED[name], RECORDED[name]()
    parts = PARTS.get(name, tuple(published.components))
    found = described(published.family.layers(recorded), parts)
    assert len(found) > 500
    assert described(published.layers(), parts) == found


@pytest.mark.parametrize("name", ["sd3", "sd3.5-medium", "sd3.5-large"])
def test_buffers_are_the_positions_of_the_recorded_checkpoint(name):
    positions = RECORDED[name]()["model.diffusion_model.pos_embed"]
    assert PUBLISHED[name].buffers["transformer"] == math.prod(positions)
