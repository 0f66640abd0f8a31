"""Presets are valid for every family, differ from the defaults in all they say, and give way to what a person sets."""

import dataclasses

import pytest

from lib_lora.errors import UsageError
from lib_lora.families.sizes import NATIVE_SIZE
from lib_lora.train.config import SECTIONS, TrainConfig
from lib_lora.train.presets import PRESETS, beneath, preset_settings

PATHS = {
    "model": {"base": "base.safetensors"},
    "data": {"folder": "pictures"},
    "saving": {"out": "out.safetensors"},
}
DEFAULTS = {
    f"{section}.{field.name}": field.default
    for section, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
}


@pytest.mark.parametrize("family", NATIVE_SIZE)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_configuration(name, family):
    config = TrainConfig.from_dict(beneath(PATHS, preset_settings(name, family)))
    assert config.data.size == NATIVE_SIZE[family]
    for setting, value in PRESETS[name].settings.items():
        section, _, key = setting.partition(".")
        assert getattr(getattr(config, section), key) == value


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_only_what_differs_and_why(name):
    preset = PRESETS[name]
    for settings in (preset.settings, *preset.families.values()):
        assert all(value != DEFAULTS[setting] for setting, value in settings.items())
    assert preset.sentence[0].isupper()
    assert preset.sentence[-1] in ".?"


def test_names_of_things_are_learnt_by_the_small_text_encoders_alone():
    assert preset_settings("character", "sd1")["network"]["text_encoder"] is True
    assert "text_encoder" not in preset_settings("character", "sdxl")["network"]


def test_what_a_person_sets_wins():
    raw = {**PATHS, "schedule": {"steps": 7}, "network": {"alpha": 3.0}}
    config = TrainConfig.from_dict(beneath(raw, preset_settings("quick")))
    assert (config.schedule.steps, config.network.alpha, config.network.rank) == (7, 3.0, 8)
    assert config.data.size == DEFAULTS["data.size"]


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'style'"):
        preset_settings("styl")
