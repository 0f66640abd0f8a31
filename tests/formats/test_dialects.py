"""Names of layers: what kohya's trainer writes, what the WebUI resolves, and every other dialect, all to the same layer."""

import pytest

from lib_lora.families.detect import detect_family
from lib_lora.families.sd1 import SD1
from lib_lora.formats import dialects
from lib_lora.formats.dialects import Target, alias_table, locate
from lib_lora.formats.suffixes import DORA, SCALE
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP
from tests.families.recorded import NAMES, shapes
from tests.golden_data import golden, shapes_of

RECORDED = golden("other_kohya_names_resolved")
CHECKPOINTS = {
    "sd15": shapes_of(golden("sd15")["original"]),
    **{name: shapes(name) for name in NAMES if name != "sd15-inpainting"},
}
TEXT_ENCODERS = {
    key: shape
    for key, shape in CHECKPOINTS["sd3-medium"].items()
    if key.startswith("text_encoders.")
}
for name in ("sd35-medium", "sd35-large"):  # their files hold the transformer alone
    CHECKPOINTS[name] = CHECKPOINTS[name] | TEXT_ENCODERS
# Under which checkpoint a trainer's set of names was recorded.
TRAINED = {
    name: {"sd21": "sd21-v", "sdxl-sgm": "sdxl-base", "sdxl-diffusers": "sdxl-base"}.get(
        name.partition("/")[0], name.partition("/")[0]
    )
    for name in RECORDED["kohya"]
}
TEXT_MODELS = {"text_encoder": "te1", "text_encoder_2": "te2", "text_encoder_3": "te3"}


class Base:
    """The layers of a whole checkpoint, and every name they go by."""

    def __init__(self, shapes):
        self.family = detect_family(shapes)
        self.layers = self.family.layers(shapes)
        self.aliases = alias_table(self.layers.values(), self.family.components)


BASES = {name: Base(recorded) for name, recorded in CHECKPOINTS.items()}


@pytest.mark.parametrize("trained", RECORDED["kohya"])
def test_every_name_that_kohyas_trainer_makes_stands_for_the_layer_it_trained(trained):
    base = BASES[TRAINED[trained]]
    for name, (component, path) in RECORDED["kohya"][trained].items():
        located = locate(f"{name}.alpha", base.aliases)
        suffix = "constraint" if name.startswith("oft_") else ALPHA
        assert (located.suffix, bool(located.alias)) == (suffix, True), name
        layers = [base.layers[target.layer] for target in located.alias.targets]
        if component in TEXT_MODELS:
            numbered = name.partition("_text_model")[0].partition("_encoder_block")[0]
            te = {"lora_te1": "te1", "lora_te2": "te2", "lora_te3": "te3"}.get(numbered, "te1")
            assert [layer.id for layer in layers] == [f"{te}.{path}"], name
        elif (
            path.startswith(("input_", "middle_", "output_", "joint_", "final_")) or ".mlp." in path
        ):
            assert {layer.weight.key for layer in layers} == {
                f"model.diffusion_model.{path}.weight"
            }
            assert len(layers) == layers[0].weight.part.of
        elif trained.startswith("sd3"):  # names that the checkpoint and diffusers share
            assert {layer.weight.key for layer in layers} == {
                f"model.diffusion_model.{path}.weight"
            }
        else:
            assert [layer.id for layer in layers] == [f"unet.{path}"]


@pytest.mark.parametrize("trained", RECORDED["webui"])
def test_every_name_that_the_webui_resolves_is_the_same_place_and_the_others_are_known(trained):
    base = BASES[trained.partition("/")[0]]
    for name, resolved in RECORDED["webui"][trained].items():
        alias = locate(f"{name}.lora_down.weight", base.aliases).alias
        if alias is None or not alias.targets:
            assert reason_to_miss(trained, name), name
            continue
        if resolved is None:
            continue
        path, part = resolved[0], resolved[1] if len(resolved) > 1 else None
        whole = f"{path}.in_proj_weight" if path.endswith(".attn") else f"{path}.weight"
        for target in alias.targets:
            placement = base.layers[target.layer].weight
            assert placement.key == whole, name
            assert part is None or placement.part.index == "qkv".index(part)


def reason_to_miss(trained, name):
    """Tell why a name that the recording tried on the WebUI is none of a layer of ours."""
    if trained.startswith("sd21") and "layers_23" in name.replace(".", "_"):
        return "the model never computes its last block"
    if name == "text_encoder_3.shared":
        return "T5's words are its `embed_tokens` in a checkpoint, which is the same tensor"
    return None


def test_the_webui_misses_names_that_are_known_here():
    missed = {
        name
        for trained in RECORDED["webui"]
        for name, resolved in RECORDED["webui"][trained].items()
        if resolved is None
    }
    assert "oft_unet_down_blocks_0_attentions_0_proj_in" in missed
    assert "unet.conv_in" in missed


@pytest.mark.parametrize("name", ["sd15", "sdxl-base", "sd3-medium"])
def test_no_name_stands_for_two_layers(name):
    base = BASES[name]
    for layer in base.layers.values():
        for alias in dialects.alias_table([layer], base.family.components):
            targets = base.aliases[alias].targets
            assert not targets or layer.id in {target.layer for target in targets}, alias
            same = [target for target in targets if target.layer == layer.id]
            assert len(same) == bool(targets)


@pytest.mark.parametrize("name", ["sd21-v", "sdxl-base", "sd3-medium"])
def test_every_layer_has_a_name_of_its_own_in_every_dialect(name):
    base = BASES[name]
    components = {component.name: component for component in base.family.components}
    for layer in base.layers.values():
        component = components[layer.component]
        for spell in (
            dialects.kohya_name,
            dialects.diffusers_name,
            dialects.onetrainer_name,
            dialects.comfy_name,
        ):
            located = locate(f"{spell(layer, component)}.alpha", base.aliases)
            if component.name == "vae" and spell is dialects.comfy_name:
                continue  # ComfyUI has no name for the autoencoder
            assert layer.id in {target.layer for target in located.alias.targets}


TO_Q = "down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_q"
TO_OUT = "down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_out"
FLAT = TO_Q.replace(".", "_")
FC1 = "encoder.layers.3.mlp.fc1"
ATTENTION = "encoder.layers.3.self_attn"
ORIGINAL = "input_blocks.2.1.transformer_blocks.0.attn1.to_q"


@pytest.mark.parametrize(
    ("key", "layer", "suffix", "dialect"),
    [
        (f"unet.{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN, "diffusers"),
        (f"unet.{TO_Q}.lora_B.weight", f"unet.{TO_Q}", UP, "diffusers"),
        (f"unet.{TO_Q}.lora_B.default.weight", f"unet.{TO_Q}", UP, "diffusers"),
        (f"unet.{TO_Q}.lora_A.my_style.weight", f"unet.{TO_Q}", DOWN, "diffusers"),
        (f"unet.{TO_Q}.lora_magnitude_vector", f"unet.{TO_Q}", DORA, "diffusers"),
        (f"unet.{TO_Q}.lora_magnitude_vector.default.weight", f"unet.{TO_Q}", DORA, "diffusers"),
        (f"unet.{TO_Q}.alpha", f"unet.{TO_Q}", ALPHA, "diffusers"),
        (f"unet.{TO_Q}.lora.down.weight", f"unet.{TO_Q}", DOWN, "diffusers"),
        (f"unet.{TO_Q}.lora_linear_layer.up.weight", f"unet.{TO_Q}", UP, "diffusers"),
        (f"unet.{TO_Q}_lora.up.weight", f"unet.{TO_Q}", UP, "diffusers"),
        (
            f"{TO_Q.replace('.to_q', '.processor.to_q')}_lora.down.weight",
            *(f"unet.{TO_Q}", DOWN, "peft"),
        ),
        (
            f"unet.{TO_OUT.replace('.to_out', '.processor.to_out')}_lora.up.weight",
            *(f"unet.{TO_OUT}.0", UP, "diffusers"),
        ),
        (f"{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN, "peft"),
        (f"{TO_Q}.lora_B.default.weight", f"unet.{TO_Q}", UP, "peft"),
        (f"base_model.model.{TO_Q}.lora_A.weight", f"unet.{TO_Q}", DOWN, "peft"),
        (
            f"unet.base_model.model.{TO_Q}.lora_A.default.weight",
            *(f"unet.{TO_Q}", DOWN, "diffusers"),
        ),
        ("conv_in.lora_A.weight", "unet.conv_in", DOWN, "peft"),
        (
            f"text_encoder.text_model.{FC1}.lora_A.weight",
            *(f"te1.text_model.{FC1}", DOWN, "diffusers"),
        ),
        (f"text_encoder.{FC1}.lora_A.weight", f"te1.text_model.{FC1}", DOWN, "diffusers"),
        (
            f"text_encoder.text_model.{ATTENTION}.to_q_lora.up.weight",
            *(f"te1.text_model.{ATTENTION}.q_proj", UP, "diffusers"),
        ),
        (
            f"text_encoder.text_model.{ATTENTION}.out_proj.lora_linear_layer.down.weight",
            *(f"te1.text_model.{ATTENTION}.out_proj", DOWN, "diffusers"),
        ),
        (f"base_model.model.text_model.{FC1}.lora_B.weight", f"te1.text_model.{FC1}", UP, "peft"),
        (f"lora_unet_{FLAT}.hada_w1_a", f"unet.{TO_Q}", "hada_w1_a", "kohya"),
        (f"lora_unet_{ORIGINAL.replace('.', '_')}.alpha", f"unet.{TO_Q}", ALPHA, "kohya-sgm"),
        (
            f"lora_te_text_model_{FC1.replace('.', '_')}.lora_up.weight",
            *(f"te1.text_model.{FC1}", UP, "kohya"),
        ),
        ("lora_unet_conv_in.dora_scale", "unet.conv_in", "dora_scale", "kohya"),
        (f"oft_unet_{FLAT}.oft_blocks", f"unet.{TO_Q}", "oft_blocks", "kohya"),
        (f"oft_unet_{FLAT}.alpha", f"unet.{TO_Q}", "constraint", "kohya"),
        (f"lycoris_{FLAT}.lokr_w1", f"unet.{TO_Q}", "lokr_w1", "lycoris"),
        (
            f"lycoris_text_model_{FC1.replace('.', '_')}.lokr_w1",
            *(f"te1.text_model.{FC1}", "lokr_w1", "lycoris"),
        ),
        (f"diffusion_model.{ORIGINAL}.lora_up.weight", f"unet.{TO_Q}", UP, "comfy"),
        (f"diffusion_model.{ORIGINAL}.lora_A.weight", f"unet.{TO_Q}", DOWN, "comfy"),
        (
            f"text_encoders.clip_l.transformer.text_model.{FC1}.lora_B.weight",
            *(f"te1.text_model.{FC1}", UP, "comfy"),
        ),
        (f"{ORIGINAL}.lora_A.weight", f"unet.{TO_Q}", DOWN, "onetrainer"),
        (f"lora:{TO_Q}.___.layer.W_down", f"unet.{TO_Q}", DOWN, "hcp"),
        (f"{TO_Q}.___.layer.W_up", f"unet.{TO_Q}", UP, "hcp"),
        (f"lora:{TO_Q}.___.layer.lora_up.weight", f"unet.{TO_Q}", UP, "hcp"),
        (f"base:denoiser.{TO_Q}.___.alpha", f"unet.{TO_Q}", SCALE, "hcp"),
        (f"base:TE.text_model.{FC1}.___.layer.W_up", f"te1.text_model.{FC1}", UP, "hcp"),
    ],
)
def test_a_key_is_a_layer_and_a_suffix(key, layer, suffix, dialect):
    located = locate(key, BASES["sd15"].aliases)
    assert located.alias is not None
    assert (located.alias.targets[0].layer, located.suffix, located.dialect) == (
        *(layer, suffix, dialect),
    )


@pytest.mark.parametrize(
    "key", ["lora_unet_nowhere.alpha", "oft_nowhere.oft_blocks", "lora:nowhere.___.alpha", "alpha"]
)
def test_a_strange_key_has_no_layer(key):
    assert locate(key, BASES["sd15"].aliases).alias is None


def test_a_tensor_of_several_layers_stands_for_all_in_the_order_of_its_rows():
    aliases = BASES["sd3-medium"].aliases
    block = "transformer.transformer_blocks.5.attn"
    for name in (
        "lora_unet_joint_blocks_5_x_block_attn_qkv",
        "diffusion_model.joint_blocks.5.x_block.attn.qkv",
        "joint_blocks.5.x_block.attn.qkv",
    ):
        targets = locate(f"{name}.lora_up.weight", aliases).alias.targets
        assert [target.layer for target in targets] == [f"{block}.to_{part}" for part in "qkv"]
        assert [(target.part.index, target.part.of) for target in targets] == [
            (0, 3),
            (1, 3),
            (2, 3),
        ]
    (norm,) = locate("lora_unet_final_layer_adaLN_modulation_1.alpha", aliases).alias.targets
    assert (norm.layer, norm.part.swap_halves) == ("transformer.norm_out.linear", True)
    (same,) = locate("transformer.norm_out.linear.lora_A.weight", aliases).alias.targets
    assert same == Target("transformer.norm_out.linear", dialects.WHOLE)
    legacy = locate("lora_transformer_norm_out_linear.lora_up.weight", aliases)
    assert (legacy.dialect, legacy.alias.targets) == ("onetrainer", (same,))


def test_a_name_without_its_component_is_refused_where_two_have_it():
    aliases = BASES["sdxl-base"].aliases
    assert locate(f"text_model.{FC1}.lora_A.weight", aliases).alias.targets == ()
    (first,) = locate(f"text_encoder.{FC1}.lora_A.weight", aliases).alias.targets
    (second,) = locate(f"lora:clip_bigG.text_model.{FC1}.___.layer.W_up", aliases).alias.targets
    assert (first.layer, second.layer) == (f"te1.text_model.{FC1}", f"te2.text_model.{FC1}")
    fused = "lora_te2_transformer_resblocks_3_attn_in_proj.lora_up.weight"
    assert [target.part.of for target in locate(fused, aliases).alias.targets] == [3, 3, 3]


def test_kohya_names_the_denoiser_by_the_original_where_it_numbers_text_encoders():
    assert not dialects.trained_under_original_names(SD1.components)
    for name, numbered in (("sd21-v", False), ("sdxl-base", True), ("sd3-medium", True)):
        components = BASES[name].family.components
        assert dialects.trained_under_original_names(components) is numbered
