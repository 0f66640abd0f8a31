"""The alphas that diffusers keeps in the metadata."""

import json
import math

import pytest

from lib_lora.errors import FileFormatError
from lib_lora.formats.adapter_metadata import KEY, alpha_of, read_fields, write_fields

TO_Q = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


@pytest.mark.parametrize(
    ("fields", "alpha"),
    [
        ({"unet.r": 4, "unet.lora_alpha": 6}, 6),
        ({"unet.r": 4}, 8),  # PEFT's default lora_alpha
        ({"r": 4, "lora_alpha": 6}, 6),
        ({"text_encoder.r": 4, "text_encoder.lora_alpha": 6}, 4),  # nothing told: alpha = rank
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {TO_Q: 3}}, 3),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {f"^{TO_Q}$": 3}}, 3),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"attn1.to_q": 3}}, 3),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"tn1.to_q": 3}}, 6),
        ({"lora_alpha": 6, "alpha_pattern": {r"mid_block\..*\.to_(q|k)": 3}}, 3),
        ({"lora_alpha": 6, "alpha_pattern": {r"^mid_block\..*to_[0-9]+$": 3}}, 6),
        ({"lora_alpha": 6, "alpha_pattern": {r"attentions\.\d+\..*to_q": 3}}, 3),
        ({"lora_alpha": 6, "alpha_pattern": {r"^attn1\..*to_q": 3}}, 6),
        # rsLoRA's scale is alpha / sqrt(rank): 6 / 2 = 12 / 4
        ({"unet.lora_alpha": 6, "unet.use_rslora": True}, 12),
    ],
)
def test_the_alpha_of_a_layer_of_rank_4(fields, alpha):
    assert alpha_of(fields, "unet", TO_Q, 4) == alpha


def test_what_is_written_is_read_back():
    layers = [
        ("unet", TO_Q, 8, 3.0),
        ("unet", "conv_in", 4, 3.0),
        ("unet", "conv_out", 8, 0.1),
        ("text_encoder", "encoder.layers.0.mlp.fc1", 2, math.pi),
    ]
    fields = read_fields({KEY: write_fields(layers)})
    for prefix, path, rank, alpha in layers:
        assert alpha_of(fields, prefix, path, rank) == alpha
        assert fields[f"{prefix}.rank_pattern"].get(path, fields[f"{prefix}.r"]) == rank
    assert fields["unet.target_modules"] == sorted([TO_Q, "conv_in", "conv_out"])


def test_no_metadata_are_no_fields():
    assert read_fields({"format": "pt"}) is None


@pytest.mark.parametrize("text", ["{", "[1]", "4", "[" * 10_000])
def test_unreadable_metadata_are_refused_since_the_strength_depends_on_them(text):
    with pytest.raises(FileFormatError, match=KEY):
        read_fields({KEY: text})


@pytest.mark.parametrize(
    "fields",
    [
        {"unet.lora_alpha": "6"},
        {"unet.lora_alpha": True},
        {"unet.r": 4, "unet.alpha_pattern": [TO_Q]},
    ],
)
def test_an_alpha_that_is_no_number_is_refused(fields):
    with pytest.raises(FileFormatError, match=KEY):
        alpha_of(json.loads(json.dumps(fields)), "unet", TO_Q, 4)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", ".*.*.*.*to_q", "[a-z]*q", "to_(q", "(?P<name>q)", "x" * 500 + ".*"]
)
def test_a_pattern_that_is_none_or_could_take_long_is_refused(pattern):
    with pytest.raises(FileFormatError, match="pattern"):
        alpha_of({"lora_alpha": 6, "alpha_pattern": {pattern: 3}}, "unet", TO_Q, 4)
