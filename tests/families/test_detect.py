"""Detection from structure: SD1 of every size is found, everything else is refused by its name."""

import pytest

from lib_lora.errors import FileFormatError
from lib_lora.families.detect import detect_family, guess_network_family
from lib_lora.families.sd1 import SD1
from tests.golden_data import golden, shapes_of

SD15 = shapes_of(golden("sd15")["original"])
OTHERS = golden("other_families")
NAMES = {
    "sd15-inpainting": "inpainting",
    "sd21-v": "Stable Diffusion 2",
    "sdxl-base": "Stable Diffusion XL checkpoint",
    "sdxl-refiner": "Stable Diffusion XL refiner",
    "sd3-medium": "Stable Diffusion 3",
    "sd35-medium": "Stable Diffusion 3",
}


def test_sd15_is_sd1():
    assert detect_family(SD15) is SD1


def test_widths_and_the_depth_of_the_text_encoder_do_not_matter():
    narrow = {
        key: tuple(max(size // 8, 4) if size > 8 else size for size in shape)
        for key, shape in SD15.items()
        if ".layers.1" not in key
    }
    assert detect_family(narrow) is SD1


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_are_refused_by_name(family):
    with pytest.raises(FileFormatError, match=rf"{NAMES[family]}.*not supported yet"):
        detect_family(shapes_of(OTHERS[family]))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("double_blocks.0.img_attn.qkv.weight", "Flux"),
        ("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight", "LoRA file"),
        ("unet.mid_block.attentions.0.proj_in.lora_A.weight", "LoRA file"),
        ("down_blocks.0.resnets.0.conv1.weight", "diffusers layout"),
        ("first_stage_model.encoder.conv_in.weight", "incomplete"),
        ("something.else", "no checkpoint of a known family"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_told_what_it_is(key, name):
    with pytest.raises(FileFormatError, match=name):
        detect_family({key: (4, 4)})


@pytest.mark.parametrize(
    ("recorded", "family"),
    [
        ("sdxl-sgm/default", "Stable Diffusion XL"),
        ("sdxl-diffusers/default", "Stable Diffusion XL"),
        ("sd3-medium/default", "Stable Diffusion 3"),
        ("sd35-large/default", "Stable Diffusion 3"),
    ],
)
def test_networks_of_other_families_are_recognised(recorded, family):
    names = golden("other_kohya_names")[recorded]
    assert guess_network_family({f"{name}.lora_down.weight": (4, 8) for name in names}) == family


def test_an_sd2_network_is_told_from_an_sd1_network_by_its_context():
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
    assert guess_network_family({f"{name}.lora_down.weight": (4, 1024)}) == "Stable Diffusion 2"
    assert guess_network_family({f"{name}.lora_down.weight": (4, 768)}) is None


def test_no_sd1_name_looks_like_another_family():
    names = golden("sd15")["kohya"]
    shapes = {f"{name}.lora_down.weight": tuple(down) for name, (*_, down, _) in names.items()}
    assert guess_network_family(shapes) is None
