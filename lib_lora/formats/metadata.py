"""The metadata of a trained LoRA, written and read: kohya's `ss_*` keys, which the WebUI shows and other tools read, and ModelSpec's.

All values are texts. Nothing is asked of the clock: a date is told only when one is given. `write_network` adds the hashes.
ModelSpec: https://github.com/Stability-AI/ModelSpec, version 1.0.1.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

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
    }
    if family.objective != "flow":  # ModelSpec knows no other prediction
        modelspec["modelspec.prediction_type"] = family.objective
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


class Folder(NamedTuple):
    """A folder of training pictures, and how often an epoch goes through it."""

    name: str
    repeats: int
    images: int


@dataclass(frozen=True, slots=True)
class ToldTraining:
    """What the metadata of a file, whoever wrote them, tell of the training.

    trigger: the phrase that was stored, else the words of the folders' names; tags: how many captions have each, the most frequent
    first; unreadable: the keys whose value is not the JSON that it should be.
    """

    trigger: tuple[str, ...]
    folders: tuple[Folder, ...]
    tags: tuple[tuple[str, int], ...]
    unreadable: tuple[str, ...]


# A folder of kohya's trainer: how often it is repeated, then the words that stand for its subject.
KOHYA_FOLDER = re.compile(r"(?P<repeats>\d{1,6})_(?P<words>.+)")
TOLD_AS_JSON = ("ss_dataset_dirs", "ss_datasets", "ss_tag_frequency")


def told_training(metadata: Mapping[str, str]) -> ToldTraining:
    """Return what metadata tell of the training; nothing in them is trusted to be as it should."""
    values = {key: _parsed(metadata[key]) for key in TOLD_AS_JSON if key in metadata}
    datasets = _dicts(values.get("ss_datasets"))
    subsets = [subset for dataset in datasets for subset in _dicts(dataset.get("subsets"))]
    folders = list(_folders(_dict(values.get("ss_dataset_dirs")), subsets))
    phrase = metadata.get("modelspec.trigger_phrase", "").strip()
    words = [str(subset["class_tokens"]) for subset in subsets if subset.get("class_tokens")]
    words += [found["words"] for name, _, _ in folders if (found := KOHYA_FOLDER.fullmatch(name))]
    tags: Counter[str] = Counter()
    for by_folder in (values.get("ss_tag_frequency"), *(d.get("tag_frequency") for d in datasets)):
        for counts in _dict(by_folder).values():
            for tag, count in _dict(counts).items():
                tags[tag.strip()] += _count(count)
    return ToldTraining(
        trigger=(phrase,) if phrase else tuple(dict.fromkeys(words)),
        folders=tuple(dict.fromkeys(folders)),
        tags=tuple(tags.most_common()),
        unreadable=tuple(key for key, value in values.items() if value is None),
    )


def _folders(dirs: Mapping[str, object], subsets: list[dict[str, object]]) -> Iterator[Folder]:
    for name, told in dirs.items():
        yield Folder(
            name, _count(_dict(told).get("n_repeats")), _count(_dict(told).get("img_count"))
        )
    for subset in subsets:
        name = str(subset.get("image_dir") or "")
        yield Folder(name, _count(subset.get("num_repeats")), _count(subset.get("img_count")))


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, object]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
