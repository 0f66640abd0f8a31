"""Sidecars."""

from pathlib import Path


def find_checkpoint_config_near_filename(info):
    config = Path(info.filename).with_suffix(".yaml")
    return str(config) if config.exists() else None
