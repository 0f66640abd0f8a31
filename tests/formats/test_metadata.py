"""The metadata of a trained LoRA: what the WebUI's card shows, as texts, the same for the same facts."""

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
import torch

from lib_lora.families.sd1 import SD1
from lib_lora.formats.hashes import autov1, file_sha256
from lib_lora.formats.metadata import (
    BaseFacts,
    Folder,
    TrainedFacts,
    base_facts,
    told_training,
    trained_metadata,
)
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


def test_what_kohya_tells_of_a_folder_of_pictures():
    told = told_training(
        {
            "ss_dataset_dirs": '{"10_sks cat": {"n_repeats": 10, "img_count": 24}}',
            "ss_tag_frequency": '{"10_sks cat": {" sitting": 3, "sks cat": 24}, "1_b": {"sitting": 4}}',
        }
    )
    assert told.folders == (Folder("10_sks cat", repeats=10, images=24),)
    assert told.trigger == ("sks cat",)
    assert told.tags == (("sks cat", 24), ("sitting", 7))
    assert told.unreadable == ()


def test_what_kohya_tells_of_a_configured_dataset():
    subset = {"image_dir": "cats", "num_repeats": 2, "img_count": 5, "class_tokens": "sks cat"}
    dataset = {"subsets": [subset], "tag_frequency": {"cats": {"sitting": 3}}}
    told = told_training({"ss_datasets": json.dumps([dataset])})
    assert told.folders == (Folder("cats", repeats=2, images=5),)
    assert (told.trigger, told.tags) == (("sks cat",), (("sitting", 3),))


def test_a_stored_trigger_phrase_comes_before_the_words_of_folders():
    told = told_training({"modelspec.trigger_phrase": "loomcat", "ss_dataset_dirs": '{"1_x": {}}'})
    assert told.trigger == ("loomcat",)


def test_what_we_write_is_what_we_read():
    told = told_training(trained_metadata(SD1, FACTS))
    assert told.trigger == ("loomcat",)
    assert told.tags == (("cat", 24), ("sitting", 3))


@pytest.mark.parametrize("value", ["", "{", "[" * 100_000, "9" * 10_000, "None"])
def test_metadata_that_cannot_be_read_are_named(value):
    told = told_training({"ss_tag_frequency": value})
    assert (told.tags, told.unreadable) in (((), ("ss_tag_frequency",)), ((), ()))
    if not value.isdigit():  # whether so long a number is read depends on Python's version
        assert told.unreadable == ("ss_tag_frequency",)


@pytest.mark.parametrize(
    "value", ["[]", "7", '"x"', '{"a": 1}', '{"a": {"b": "c"}}', '[{"subsets": 1}]']
)
def test_metadata_of_another_form_tell_nothing(value):
    for key in ("ss_dataset_dirs", "ss_datasets", "ss_tag_frequency"):
        told = told_training({key: value})
        assert told.trigger == ()
        assert all(count == 0 for _, count in told.tags)
