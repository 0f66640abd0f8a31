"""The layers of every family against the recorded checkpoints, the recorded diffusers converter and the recorded kohya targets."""

import pytest

from lib_lora.families.detect import FAMILIES, detect_family
from tests.families import recorded
from tests.families.recorded import NAMES
from tests.golden_data import golden

KOHYA = golden("other_families_kohya")

# What diffusers' modules hold and our tables place otherwise, with the reason.
NO_LAYER = {
    "transformer.pos_embed.pos_embed",  # a buffer, no weight
    "te3.shared.weight",  # tied to encoder.embed_tokens, which this file holds
    "te1.text_projection.weight",  # the converter puts the identity; other loaders read the file's
}
# What files hold and no model computes with, besides buffers: SD2's last block, and what follows it.
UNUSED = (
    "cond_stage_model.model.text_projection",
    "cond_stage_model.model.transformer.resblocks.23.",
)
POSITIONS = "model.diffusion_model.pos_embed"
PROJECTION = "text_encoders.clip_l.transformer.text_projection.weight"


def layers_of(name):
    shapes = recorded.shapes(name)
    return detect_family(shapes).layers(shapes)


def operation(placement, shapes):
    """Return a placement in the words of the record."""
    part, stored = placement.part, shapes[placement.key]
    told = {}
    if part.of > 1:
        rows = stored[0] // part.of
        told["rows"] = [part.index * rows, (part.index + 1) * rows]
    if part.transpose:
        told["transpose"] = True
    if part.swap_halves:
        told["swap_halves"] = 0
    if part.pointwise:
        told["squeeze"] = list(stored[:2])
    return told


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_lies_where_the_diffusers_converter_reads_it(name):
    shapes = recorded.shapes(name)
    ours = {}
    for layer in layers_of(name).values():
        ours[f"{layer.id}.weight"] = (layer.weight.key, operation(layer.weight, shapes))
        if layer.bias:
            ours[f"{layer.id}.bias"] = (layer.bias.key, operation(layer.bias, shapes))
    theirs = recorded.places(name)
    left = {key for key in theirs if key in NO_LAYER and theirs[key][0] in (None, POSITIONS)}
    if "te1.text_projection.weight" in left:
        assert ours.pop("te1.text_projection.weight") == (PROJECTION, {})
    assert ours == {key: place for key, place in theirs.items() if key not in left}


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_the_converted_tensors(name):
    shapes, layers = recorded.shapes(name), layers_of(name)
    for key, (original, told) in recorded.places(name).items():
        layer, _, kind = key.rpartition(".")
        if kind != "weight" or key in NO_LAYER:
            continue
        expected = tuple(told.get("squeeze", shapes[original]))
        if "rows" in told:
            expected = (told["rows"][1] - told["rows"][0], *expected[1:])
        assert layers[layer].shape == (expected[::-1] if "transpose" in told else expected), key


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_layer_is_a_buffer_or_unused(name):
    placed = {p.key for layer in layers_of(name).values() for p in (layer.weight, layer.bias) if p}
    left = recorded.shapes(name).keys() - placed - {POSITIONS}
    assert {key for key in left if not key.startswith(UNUSED)} == set(
        recorded.RECORDED[name]["buffers"]
    )


@pytest.mark.parametrize("name", KOHYA)
def test_the_default_targets_are_kohyas(name):
    # kohya names the transformer's layers after the original checkpoint, with q, k and v as one.
    family = detect_family(recorded.shapes(name))
    ours = {
        f"{layer.component}.{layer.weight.key.split('.', 2)[2].removesuffix('.weight')}"
        if layer.component == "transformer"
        else layer.id
        for layer in layers_of(name).values()
        if layer.path.endswith(family.trained_by_default)
    }
    # The recorded SD3.5 checkpoints hold no text encoders.
    components = {layer.component for layer in layers_of(name).values()}
    assert ours == {target for target in KOHYA[name] if target.partition(".")[0] in components}
    assert len(ours) > 200


@pytest.mark.parametrize("name", NAMES)
def test_the_schedules_buffers_are_in_the_recorded_file(name):
    family = detect_family(recorded.shapes(name))
    assert set(family.buffers) <= set(recorded.RECORDED[name]["buffers"])


@pytest.mark.parametrize("name", ["sd3-medium", "sd35-medium", "sd35-large"])
def test_halves_are_swapped_in_the_last_block_of_a_small_model_too(name):
    shapes = recorded.small(name)
    layers = detect_family(shapes).layers(shapes)
    norm = "transformer.transformer_blocks.{}.norm1_context.linear"
    first, last = layers[norm.format(0)], layers[norm.format(1)]
    assert not first.weight.part.swap_halves
    assert last.weight.part.swap_halves
    assert last.bias.part.swap_halves


def test_variants_of_a_family_share_their_components():
    by_id = {}
    for family in FAMILIES:
        assert by_id.setdefault(family.id, family).components == family.components
