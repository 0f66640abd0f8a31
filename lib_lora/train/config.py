"""What a training run is asked to do: nested frozen records whose fields carry what a form, the CLI and the docs need.

The defaults stand in the sections' records and nowhere else; a preset or a configuration file is a difference from them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lib_lora.errors import ConfigError, UsageError, did_you_mean
from lib_lora.train.config_checks import cross_problems
from lib_lora.train.config_inputs import DataConfig, ModelConfig
from lib_lora.train.config_learning import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from lib_lora.train.config_outputs import SamplesConfig, SavingConfig
from lib_lora.train.config_run import RunConfig
from lib_lora.train.fields import from_text, read_section


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything a training run is asked to do."""

    model: ModelConfig
    data: DataConfig
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    saving: SavingConfig
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], folder: Path = Path()) -> TrainConfig:
        """Read {section: {key: value}}; relative paths are taken from `folder`. Raises ConfigError with ALL problems."""
        problems = [
            (name, f"There is no such section. {did_you_mean(name, SECTIONS)}")
            for name in raw
            if name not in SECTIONS
        ]
        sections = {
            name: read_section(name, kind, raw.get(name, {}), folder, problems)
            for name, kind in SECTIONS.items()
        }
        problems += cross_problems(sections)
        if problems:
            raise ConfigError(problems)
        return cls(**{name: SECTIONS[name](**values) for name, values in sections.items()})

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Return plain JSON values that `from_dict` reads back to an equal record."""
        plain = dataclasses.asdict(self)
        return {
            section: {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
            for section, values in plain.items()
        }


SECTIONS: dict[str, type] = typing.get_type_hints(TrainConfig)
"""Section name -> its record."""


def with_settings(
    raw: Mapping[str, Mapping[str, object]], settings: Iterable[str]
) -> dict[str, dict[str, object]]:
    """Return a copy of `raw` with each "section.key=value" put in; texts are read as the field's type.

    Names and values are checked by `TrainConfig.from_dict`. Raises UsageError for a text of another form.
    """
    changed = {section: dict(values) for section, values in raw.items()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise UsageError(
                f"A setting reads section.key=value, such as run.seed=1; found {setting!r}."
            )
        hints = typing.get_type_hints(SECTIONS[section]) if section in SECTIONS else {}
        changed.setdefault(section, {})[key] = from_text(text, hints.get(key, str))
    return changed
