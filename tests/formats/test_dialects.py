"""Names of layers: what kohya's trainer writes, the SGM spelling, diffusers and PEFT, all to the same layer."""

import pytest

from lib_lora.families.sd1 import SD1
from lib_lora.formats.dialects import alias_table, split_key
from lib_lora.networks.lora import ALPHA, DOWN, UP
from tests.golden_data import golden, shapes_of

FACTS = golden("sd15")
LAYERS = SD1.layers(shapes_of(FACTS["original"]))
ALIASES = alias_table(LAYERS.values(), SD1.components)
TO_Q = "down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_q"
FC1 = "encoder.layers.3.mlp.fc1"


def test_every_name_that_kohyas_trainer_makes_stands_for_the_layer_it_trained():
    for name, (component, path, *_) in FACTS["kohya"].items():
        assert ALIASES[name] == (f"{component}.{path}", "kohya")


def test_the_flattened_original_names_stand_for_the_converters_layers():
    for key, (original, *_) in FACTS["mapping"]["unet"].items():
        if key.endswith(".weight"):
            inner = original.removeprefix("model.diffusion_model.").removesuffix(".weight")
            name = f"lora_unet_{inner.replace('.', '_')}"
            assert ALIASES[name].layer == f"unet.{key.removesuffix('.weight')}"


def test_no_name_stands_for_two_layers():
    for layer in LAYERS.values():
        for name, alias in alias_table([layer], SD1.components).items():
            assert ALIASES[name].layer == alias.layer, name


@pytest.mark.parametrize(
    ("key", "layer", "suffix"),
    [
        (f"unet.{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN),
        (f"unet.{TO_Q}.lora_B.weight", f"unet.{TO_Q}", UP),
        (f"{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN),
        (f"{TO_Q}.lora_B.default.weight", f"unet.{TO_Q}", UP),
        (f"base_model.model.{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN),
        (f"unet.base_model.model.{TO_Q}.lora_A.default.weight", f"unet.{TO_Q}", DOWN),
        (f"unet.{TO_Q}.alpha", f"unet.{TO_Q}", ALPHA),
        (f"text_encoder.text_model.{FC1}.lora_A.weight", f"te1.text_model.{FC1}", DOWN),
        (f"text_encoder.{FC1}.lora_A.weight", f"te1.text_model.{FC1}", DOWN),
        (f"base_model.model.text_model.{FC1}.lora_B.weight", f"te1.text_model.{FC1}", UP),
        ("lora_unet_input_blocks_2_1_transformer_blocks_0_attn1_to_q.alpha", f"unet.{TO_Q}", ALPHA),
        ("lora_te_text_model_encoder_layers_3_mlp_fc1.lora_up.weight", f"te1.text_model.{FC1}", UP),
        ("lora_unet_conv_in.dora_scale", "unet.conv_in", "dora_scale"),
    ],
)
def test_a_key_is_split_into_layer_and_suffix(key, layer, suffix):
    name, found = split_key(key, ALIASES)
    assert (ALIASES[name].layer, found) == (layer, suffix)
