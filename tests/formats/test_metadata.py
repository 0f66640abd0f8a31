"""The metadata of a trained LoRA: what the WebUI's card shows, as texts, the same for the same facts."""

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
import torch

from lib_lora.families.sd1 import SD1
from lib_lora.formats.hashes import autov1, file_sha256
from lib_lora.formats.metadata import BaseFacts, TrainedFacts, base_facts, trained_metadata
from lib_lora.formats.stream import write_tensors

FACTS = TrainedFacts(
    name="cat-style",
    rank=16,
    alpha=8.0,
    base=BaseFacts("base.safetensors", "ab" * 32, "12345678"),
    resolution=(512, 768),
    steps=1200,
    images=24,
    created=datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc),
    trigger="loomcat",
    tags={"10_cat": {"sitting": 3, "cat": 24}},
    settings={"learning_rate": 1e-4, "seed": 7},
)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ss_output_name", "cat-style"),
        ("ss_base_model_version", "sd_v1"),
        ("ss_v2", "False"),
        ("ss_sd_model_name", "base.safetensors"),
        ("ss_new_sd_model_hash", "ab" * 32),
        ("ss_sd_model_hash", "12345678"),
        ("ss_network_module", "networks.lora"),
        ("ss_network_dim", "16"),
        ("ss_network_alpha", "8"),
        ("ss_resolution", "(512, 768)"),
        ("ss_steps", "1200"),
        ("ss_num_train_images", "24"),
        ("ss_learning_rate", "0.0001"),
        ("ss_seed", "7"),
        ("ss_training_started_at", "1796040000.0"),  # 2026-11-30 12:00 UTC
        ("modelspec.architecture", "stable-diffusion-v1/lora"),
        ("modelspec.title", "cat-style"),
        ("modelspec.resolution", "512x768"),
        ("modelspec.date", "2026-11-30T12:00:00+00:00"),
        ("modelspec.trigger_phrase", "loomcat"),
        ("modelspec.prediction_type", "epsilon"),
        ("modelspec.sai_model_spec", "1.0.1"),
    ],
)
def test_a_fact_is_told_under_its_public_key(key, value):
    assert trained_metadata(SD1, FACTS)[key] == value


def test_the_tags_are_json_by_folder():
    told = json.loads(trained_metadata(SD1, FACTS)["ss_tag_frequency"])
    assert told == {"10_cat": {"sitting": 3, "cat": 24}}


def test_the_same_facts_give_the_same_texts_whatever_their_order():
    turned = replace(
        FACTS,
        tags={"10_cat": {"cat": 24, "sitting": 3}},
        settings=dict(reversed(FACTS.settings.items())),
    )
    told = trained_metadata(SD1, turned)
    assert list(told.items()) == list(trained_metadata(SD1, FACTS).items())
    assert list(told) == sorted(told)
    assert all(type(value) is str for value in told.values())


def test_no_trigger_is_no_key():
    assert "modelspec.trigger_phrase" not in trained_metadata(SD1, replace(FACTS, trigger=""))


def test_the_base_is_named_by_its_file_and_hashes(tmp_path):
    file = tmp_path / "some-base.safetensors"
    write_tensors(file, {"w": torch.zeros(4)}, {})
    assert base_facts(file) == BaseFacts("some-base.safetensors", file_sha256(file), autov1(file))
