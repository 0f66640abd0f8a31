"""Configurations for tests: what a test does not name is small."""

import pytest

from lib_lora.errors import ConfigError
from lib_lora.train.config import TrainConfig
from tests.tiny import CONFIG

# What must be given, and no more.
MINIMAL = {
    "model": {"base": "base.safetensors"},
    "data": {"folder": "pictures"},
    "saving": {"out": "lora.safetensors"},
}


def asked_config(base_file, pictures, out_file, **sections):
    """Return a configuration of a tiny training; `sections` are merged over it."""
    raw = {
        "model": {"base": str(base_file), "config": str(CONFIG)},
        "data": {"folder": str(pictures), "size": 64, "caption_parts": 1},
        "network": {"rank": 4, "alpha": 2.0},
        "schedule": {"steps": 10, "batch": 2},
        "loss": {"validation_draws": 4},
        "saving": {"out": str(out_file), "dtype": "fp32"},
        "run": {"threads": 1, "device": "cpu"},
    }
    for section, values in sections.items():
        raw[section] = {**raw.get(section, {}), **values}
    return TrainConfig.from_dict(raw)


def problems_of(raw):
    """Return what is wrong with a configuration, by field."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict(raw)
    return dict(caught.value.problems)
