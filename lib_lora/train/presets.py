"""Named starting points: differences from the defaults, for what a person wants to teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib_lora.errors import UsageError, did_you_mean
from lib_lora.families.sizes import NATIVE_SIZE

Settings = Mapping[str, str | int | float | bool]
"""Values by "section.key"."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A starting point: its label, a sentence that says what it is for, its settings, and what is added for single families."""

    label: str
    sentence: str
    settings: Settings
    families: Mapping[str, Settings] = field(default_factory=dict)


WITH_TEXT: Mapping[str, Settings] = {
    "sd1": {"network.text_encoder": True},
    "sd2": {"network.text_encoder": True},
}
"""For names of things: the encoders of later families are large, and learn the same in the denoiser alone."""

PRESETS: Mapping[str, Preset] = {
    "character": Preset(
        "Character",
        "A person or a figure from 15 to 40 pictures, with captions that name what is not part of it.",
        {
            "schedule.steps": 1500,
            "schedule.warmup": 50,
            "schedule.batch": 2,
            "network.alpha": 8.0,
            "data.caption_dropout": 0.05,
        },
        WITH_TEXT,
    ),
    "style": Preset(
        "Style",
        "A way of drawing from 30 or more pictures of different things, with captions that do not name the style.",
        {
            "schedule.steps": 2500,
            "schedule.warmup": 100,
            "schedule.batch": 4,
            "network.rank": 32,
            "network.conv_rank": 8,
            "data.caption_dropout": 0.1,
        },
    ),
    "object": Preset(
        "Object",
        "A single thing from 8 to 20 pictures on different backgrounds.",
        {
            "schedule.steps": 800,
            "schedule.warmup": 30,
            "network.rank": 8,
            "network.alpha": 8.0,
        },
        WITH_TEXT,
    ),
    "concept": Preset(
        "Concept",
        "A pose, a garment or a composition that many different subjects share.",
        {
            "schedule.steps": 1200,
            "schedule.warmup": 50,
            "schedule.batch": 2,
            "network.alpha": 8.0,
            "data.caption_dropout": 0.1,
        },
    ),
    "quick": Preset(
        "Quick try",
        "A first look after a few minutes: is this the right material?",
        {
            "schedule.steps": 300,
            "schedule.decay": "constant",
            "optimizer.unet_rate": 3e-4,
            "network.rank": 8,
            "network.alpha": 8.0,
        },
    ),
    "low-memory": Preset(
        "Low memory",
        "The least that a training can do with: slower, and on a base model of rounded weights.",
        {
            "schedule.accumulate": 2,
            "network.rank": 8,
            "network.alpha": 8.0,
            "run.checkpointing": True,
            "run.storage": "fp8",
            "run.vae_slicing": True,
            "run.vae_tiling": True,
        },
    ),
}
"""By the name that `train --preset` takes."""


def preset_settings(name: str, family: str | None = None) -> dict[str, dict[str, object]]:
    """Return the settings of a preset in sections, which `TrainConfig.from_dict` reads; raises UsageError with the nearest name.

    family: the id of the base model's, whose size of pictures is taken; `None` keeps the default one.
    """
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r}. {did_you_mean(name, PRESETS)}")
    preset = PRESETS[name]
    size = {"data.size": NATIVE_SIZE[family]} if family else {}
    sections: dict[str, dict[str, object]] = {}
    for settings in (size, preset.settings, preset.families.get(family or "", {})):
        for setting, value in settings.items():
            section, _, key = setting.partition(".")
            sections.setdefault(section, {})[key] = value
    return sections


def beneath(
    raw: Mapping[str, Mapping[str, object]], settings: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """Return `raw` with `settings` where it says nothing itself."""
    return {
        section: {**settings.get(section, {}), **raw.get(section, {})}
        for section in dict.fromkeys((*settings, *raw))
    }
