"""Detection from structure: every family of every size is found as itself, everything else is refused by its name."""

import pytest

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import (
    FAMILIES,
    detect_family,
    disagreement,
    guess_network_family,
    network_families,
)
from lib_lora.families.sd1 import SD1, SD1_INPAINTING
from lib_lora.families.sd2 import SD2, SD2_EPSILON
from lib_lora.families.sd3 import SD3, SD35_LARGE, SD35_MEDIUM
from lib_lora.families.sdxl import SDXL, SDXL_REFINER
from tests.families import recorded
from tests.golden_data import golden, shapes_of

SD15 = shapes_of(golden("sd15")["original"])
FOUND = {
    "sd15-inpainting": SD1_INPAINTING,
    "sd21-v": SD2,
    "sdxl-base": SDXL,
    "sdxl-refiner": SDXL_REFINER,
    "sd3-medium": SD3,
    "sd35-medium": SD35_MEDIUM,
    "sd35-large": SD35_LARGE,
}
CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
CROSS = "lora_unet_{}_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight"


def fitting(shapes):
    return {family.label for family in FAMILIES if family.signature.fits(shapes)}


def test_sd15_is_sd1():
    assert detect_family(SD15) is SD1
    assert fitting(SD15) == {SD1.label}


def test_old_sd1_files_lack_the_wrapper_of_the_text_encoder():
    """The WebUI renames three beginnings of keys when it loads such a file (`checkpoint_dict_replacements_sd1`)."""
    clip = "cond_stage_model.transformer."
    old = {key.replace(f"{clip}text_model.", clip): shape for key, shape in SD15.items()}
    assert old.keys() != SD15.keys()
    family = detect_family(old)
    assert (family.id, family.label, fitting(old)) == ("sd1", SD1.label, {SD1.label})
    layers, usual = family.layers(old), SD1.layers(SD15)
    assert layers.keys() == usual.keys()
    for id_, layer in layers.items():
        assert layer.shape == usual[id_].shape
        for place, other in ((layer.weight, usual[id_].weight), (layer.bias, usual[id_].bias)):
            assert (place and place.key) == (other and other.key.replace("text_model.", "")), id_
    name = "lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"
    assert guess_network_family({name: (4, 768)}, family.components) is None


def test_widths_and_the_depth_of_the_text_encoder_do_not_matter():
    narrow = {
        key: tuple(max(size // 8, 4) if size > 8 else size for size in shape)
        for key, shape in SD15.items()
        if ".layers.1" not in key
    }
    assert detect_family(narrow) is SD1


@pytest.mark.parametrize("name", FOUND)
def test_each_family_is_found_as_itself_and_as_no_other(name):
    for shapes in (recorded.shapes(name), recorded.small(name)):
        assert detect_family(shapes) is FOUND[name]
        assert fitting(shapes) == {FOUND[name].label}


def test_an_sd3_file_without_text_encoders_is_sd3():
    bare = {k: v for k, v in recorded.shapes("sd3-medium").items() if "text_encoders" not in k}
    assert detect_family(bare) is SD3


@pytest.mark.parametrize(
    ("marker", "metadata", "family"),
    [
        ({}, {}, SD2),
        ({}, {"modelspec.prediction_type": "epsilon"}, SD2_EPSILON),
        ({}, {"modelspec.prediction_type": "v"}, SD2),
        ({}, {"modelspec.architecture": "stable-diffusion-v2-512"}, SD2_EPSILON),
        ({}, {"modelspec.architecture": "stable-diffusion-v2-512/lora"}, SD2_EPSILON),
        ({"v_pred": (0,)}, {"modelspec.prediction_type": "epsilon"}, SD2),
        ({}, {"modelspec.predict_key": "epsilon"}, SD2_EPSILON),
        ({}, {"modelspec.prediction_type": "something"}, SD2),
    ],
)
def test_what_sd2_predicts_is_told_by_a_key_or_the_metadata_else_v(marker, metadata, family):
    assert detect_family(recorded.shapes("sd21-v") | marker, metadata) is family


@pytest.mark.parametrize("name", ["sd15-inpainting", "sdxl-base"])
def test_other_families_may_predict_v_too(name):
    shapes = recorded.shapes(name)
    assert detect_family(shapes).objective == "epsilon"
    told = detect_family(shapes | {"v_pred": (0,)})
    assert (told.objective, told.id) == ("v", FOUND[name].id)


def test_a_flow_does_not_predict_v():
    shapes = recorded.shapes("sd3-medium") | {"v_pred": (0,)}
    assert detect_family(shapes).objective == "flow"


@pytest.mark.parametrize(
    ("family", "metadata", "named"),
    [
        (SD1, {"ss_base_model_version": "sdxl_base_v1-0"}, "sdxl_base_v1-0"),
        (SD1, {"modelspec.architecture": "flux-1-dev"}, "flux-1-dev"),
        (SDXL, {"modelspec.architecture": "stable-diffusion-v1/lora"}, "stable-diffusion-v1/lora"),
        (SD3, {"ss_base_model_version": "sd_v1"}, "sd_v1"),
        (SD1, {"ss_base_model_version": "sd_v1"}, None),
        (SD1_INPAINTING, {"modelspec.architecture": "stable-diffusion-v1"}, None),
        (SD2_EPSILON, {"ss_base_model_version": "sd_v2_v"}, None),
        (SDXL, {"ss_base_model_version": "sdxl_"}, None),
        (SD35_LARGE, {"modelspec.architecture": "stable-diffusion-3-5-large"}, None),
        (SD1, {"ss_output_name": "sdxl"}, None),
        (SD1, {"ss_base_model_version": ""}, None),
    ],
)
def test_metadata_that_name_another_family_are_told(family, metadata, named):
    sentence = disagreement(family, metadata)
    assert (sentence is None) == (named is None)
    assert named is None or (repr(named) in sentence and family.label in sentence)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.label)
def test_what_a_family_writes_into_metadata_does_not_disagree_with_it(family):
    written = {
        "ss_base_model_version": family.kohya_version,
        "modelspec.architecture": f"{family.architecture}/lora",
    }
    assert disagreement(family, written) is None


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("double_blocks.0.img_attn.qkv.weight", "Flux"),
        ("model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale", "Flux"),
        ("single_transformer_blocks.0.attn.to_q.weight", "Flux"),
        ("distilled_guidance_layer.in_proj.weight", "Chroma"),
        ("txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias", "Hunyuan Video"),
        ("mlp_t5.0.weight", "Hunyuan-DiT"),
        ("model.diffusion_model.head.modulation", "Wan"),
        ("clip_txt_mapper.weight", "Stable Cascade"),
        ("down_blocks.1.0.channelwise.0.weight", "Stable Cascade"),
        ("blocks.0.cross_attn.kv_linear.weight", "PixArt"),
        ("double_layers.0.attn.w1q.weight", "AuraFlow"),
        ("model.diffusion_model.encoder_hid_proj.weight", "Kolors"),
        ("blocks.0.attn.qkv_x.t5_yproj.weight", "Mochi"),
        ("patchify_proj.weight", "LTX-Video"),
        ("cap_embedder.0.weight", "Lumina"),
        ("transformer_blocks.0.img_mlp.net.0.proj.weight", "Qwen-Image"),
        ("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight", "LoRA file"),
        ("unet.mid_block.attentions.0.proj_in.lora_A.weight", "LoRA file"),
        ("down_blocks.0.resnets.0.conv1.weight", "diffusers layout"),
        ("first_stage_model.encoder.conv_in.weight", "incomplete"),
        ("something.else", "no checkpoint of a known family"),
    ],
)
def test_a_file_that_is_no_supported_checkpoint_is_told_what_it_is(key, name):
    with pytest.raises(FileFormatError, match=rf"{name}.*not supported yet"):
        detect_family({key: (4, 4)})


@pytest.mark.parametrize(
    ("name", "changed", "named"),
    [
        ("sdxl-base", {CONV_IN: (320, 9, 3, 3)}, "nine input channels"),
        ("sd21-v", {CONV_IN: (320, 5, 3, 3)}, "depth-guided"),
        ("sdxl-base", {"edm_mean": (1, 4, 1, 1)}, "Playground"),
        ("sdxl-base", {"model.diffusion_model.encoder_hid_proj.weight": (8, 8)}, "Kolors"),
        ("sd21-v", {"model.diffusion_model.label_emb.0.0.weight": (8, 8)}, "Stable Diffusion 2"),
    ],
)
def test_relatives_of_a_family_are_refused(name, changed, named):
    with pytest.raises(FileFormatError, match=named):
        detect_family(recorded.shapes(name) | changed)


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (golden("sd15")["kohya"], SD1),
        *(
            (golden("other_kohya_names")[name], family)
            for name, family in (
                ("sdxl-sgm/default", SDXL),
                ("sdxl-diffusers/default", SDXL),
                ("sd3-medium/default", SD3),
                ("sd35-large/default", SD3),
            )
        ),
    ],
    ids=["sd15", "sdxl-sgm", "sdxl-diffusers", "sd3-medium", "sd35-large"],
)
def test_a_network_of_a_supported_family_is_named_on_the_bases_of_others(names, family):
    shapes = {f"{name}.lora_down.weight": (4, 768 if family is SD1 else 8) for name in names}
    assert network_families(shapes) == (family,)
    assert guess_network_family(shapes) is None
    for base in FAMILIES:
        fits = base.id == family.id
        assert guess_network_family(shapes, base.components) == (None if fits else family.label)


@pytest.mark.parametrize(
    ("width", "name"),
    [(768, "Stable Diffusion 1"), (1024, "Stable Diffusion 2"), (32, None)],
)
def test_widths_tell_sd2_from_sd1_and_nothing_of_a_small_model(width, name):
    shapes = {CROSS.format("down_blocks_0"): (4, width)}
    for base in (SD1, SD2):
        named = guess_network_family(shapes, base.components)
        assert named == (None if base.label == name else name)


def test_the_depth_of_the_text_encoder_tells_sd2_from_sd1():
    name = "lora_te_text_model_encoder_layers_{}_mlp_fc1.lora_down.weight"
    assert network_families({name.format(11): (4, 8)}) == (SD1, SD2)
    assert network_families({name.format(11): (4, 8), name.format(12): (4, 8)}) == (SD2,)


@pytest.mark.parametrize(
    ("encoder", "families"),
    [
        ("clip_l", (SD1, SDXL, SD3)),
        ("clip_h", (SD2,)),
        ("clip_g", (SDXL, SDXL_REFINER, SD3)),
        ("t5xxl", (SD3,)),
    ],
)
def test_comfys_name_of_a_text_encoder_tells_which_it_is(encoder, families):
    name = f"text_encoders.{encoder}.transformer.text_model.encoder.layers.0.mlp.fc1.lora_A.weight"
    assert network_families({name: (4, 8)}) == families


def test_widths_do_not_overrule_structure():
    # An attention of five blocks is SDXL's, however wide the text is that it reads.
    names = (
        CROSS.format("down_blocks_2"),
        CROSS.format("down_blocks_2").replace("_0_attn2", "_4_attn2"),
    )
    assert network_families(dict.fromkeys(names, (4, 768))) == (SDXL,)


def test_of_clues_that_contradict_each_other_the_strongest_counts():
    # One tensor of a second text encoder: no SD1 network has it, whatever else fits.
    names = (*golden("sd15")["kohya"], "lora_te2_text_model_encoder_layers_0_mlp_fc1")
    shapes = {f"{name}.lora_down.weight": (4, 768) for name in names}
    assert "Stable Diffusion XL" in guess_network_family(shapes, SD1.components)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("lora_unet_double_blocks_0_img_attn_qkv", "Flux"),
        ("transformer.single_transformer_blocks.0.attn.to_q", "Flux"),
        ("lora_unet_double_blocks_0_img_mod_linear", "Hunyuan Video"),
        ("lora_unet_blocks_0_cross_attn_k", "Wan"),
        ("diffusion_model.blocks.0.cross_attn.k", "Wan"),
        ("blocks.0.cross_attn.kv_linear", "PixArt"),
        ("lora_prior_unet_down_blocks_0_0_channelwise_0", "Stable Cascade"),
        ("transformer.transformer_blocks.0.img_mlp.net.2", "Qwen-Image"),
        ("transformer.joint_transformer_blocks.0.attn.to_q", "AuraFlow"),
        ("transformer.transformer_blocks.0.attn1.to_q", "PixArt or LTX-Video"),
    ],
)
def test_networks_of_unsupported_families_are_named_on_every_base(name, family):
    shapes = {f"{name}.lora_A.weight": (4, 8)}
    assert guess_network_family(shapes) == family
    assert guess_network_family(shapes, SD1.components) == family


@pytest.mark.parametrize("name", FOUND)
def test_a_checkpoint_is_no_network(name):
    assert guess_network_family(recorded.shapes(name), SD1.components) is None
