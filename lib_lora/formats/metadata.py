"""The metadata of a trained LoRA: kohya's `ss_*` keys, which the WebUI shows and other tools read, and ModelSpec's.

All values are texts. Nothing is asked of the clock: a date is told only when one is given. `write_network` adds the hashes.
ModelSpec: https://github.com/Stability-AI/ModelSpec, version 1.0.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lib_lora.families.table import Family
from lib_lora.formats.hashes import autov1, file_sha256

IMPLEMENTATION = "https://github.com/huggingface/diffusers"
KOHYA_MODULE = "networks.lora"


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """The base model a network was trained on, as metadata name it."""

    name: str
    sha256: str
    autov1: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedFacts:
    """What there is to tell of a finished training.

    created: the date to tell, with its time zone, `None` for none: files told no date are the same for the same inputs; tags: folder -> caption part -> how many pictures have it; settings: further
    `ss_*` values by their name without the prefix, such as {"learning_rate": 1e-4, "seed": 7}.
    """

    name: str
    rank: int
    alpha: float
    base: BaseFacts
    resolution: tuple[int, int]
    steps: int
    images: int
    created: datetime | None = None
    trigger: str = ""
    tags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def base_facts(file: Path) -> BaseFacts:
    """Read what metadata tell of a base model; the whole file is read once."""
    return BaseFacts(file.name, file_sha256(file), autov1(file))


def trained_metadata(family: Family, facts: TrainedFacts) -> dict[str, str]:
    """Return the metadata of a trained LoRA, the same for the same facts."""
    width, height = facts.resolution
    kohya = {
        "v2": family.kohya_version.startswith("sd_v2"),
        "base_model_version": family.kohya_version,
        "sd_model_name": facts.base.name,
        "sd_model_hash": facts.base.autov1,
        "new_sd_model_hash": facts.base.sha256,
        "output_name": facts.name,
        "network_module": KOHYA_MODULE,
        "network_dim": facts.rank,
        "network_alpha": f"{facts.alpha:g}",
        "resolution": f"({width}, {height})",
        "steps": facts.steps,
        "num_train_images": facts.images,
        "tag_frequency": _json(facts.tags),
        **facts.settings,
    }
    modelspec = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{family.architecture}/lora",
        "modelspec.implementation": IMPLEMENTATION,
        "modelspec.title": facts.name,
        "modelspec.resolution": f"{width}x{height}",
        "modelspec.prediction_type": family.objective,
    }
    if facts.created is not None:
        kohya["training_started_at"] = facts.created.timestamp()
        modelspec["modelspec.date"] = facts.created.isoformat(timespec="seconds")
    if facts.trigger:
        modelspec["modelspec.trigger_phrase"] = facts.trigger
    told = {f"ss_{name}": str(value) for name, value in kohya.items()} | modelspec
    return dict(sorted(told.items()))


def _json(value: Mapping[str, Mapping[str, int]]) -> str:
    plain = {name: dict(counts) for name, counts in value.items()}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)
