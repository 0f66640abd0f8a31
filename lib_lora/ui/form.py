"""The form of a training, described for the page: every word and limit of it comes from the fields of `TrainConfig`."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from lib_lora.errors import ConfigError, did_you_mean
from lib_lora.train.config import SECTIONS, TrainConfig, with_settings

BASE, FOLDER, OUT = "model.base", "data.folder", "saving.out"
OWN_PLACE = (BASE, FOLDER, OUT)
"""The page asks for these with more than a field."""
BASIC = (
    "data.caption",
    "data.size",
    "network.type",
    "network.rank",
    "schedule.steps",
    "schedule.batch",
    "optimizer.unet_rate",
    "samples.prompts",
)
SEVERAL_LINES = ("samples.prompts",)
KINDS = {bool: "switch", int: "integer", float: "number", str: "text", Path: "path"}

Described = dict[str, Any]
Settings = Mapping[str, str]
"""What the page sends: "section.key" -> text."""


def describe_form() -> Described:
    """Return {own, basic, groups} of plain JSON values: the fields in the order of the page, each with its words and limits."""
    fields = {
        each["name"]: each
        for section, kind in SECTIONS.items()
        for each in _describe_section(section, kind)
    }
    groups = [
        {
            "id": section,
            "label": section.capitalize(),
            "help": inspect.cleandoc(kind.__doc__ or ""),
            "fields": [
                each
                for name, each in fields.items()
                if name.partition(".")[0] == section and name not in (*OWN_PLACE, *BASIC)
            ],
        }
        for section, kind in SECTIONS.items()
    ]
    return {
        "own": {name.partition(".")[2]: fields[name] for name in OWN_PLACE},
        "basic": [fields[name] for name in BASIC],
        "groups": [group for group in groups if group["fields"]],
    }


def read_form(settings: Settings, folder: Path = Path()) -> TrainConfig:
    """Return what a filled form asks for; raises ConfigError with all problems. Relative paths start at `folder`."""
    names = known_names()
    unknown = [name for name in settings if name not in names]
    if unknown:
        raise ConfigError([(name, did_you_mean(name, names)) for name in unknown])
    texts = [f"{name}={text}" for name, text in settings.items()]
    return TrainConfig.from_dict(with_settings({}, texts), folder)


def known_names() -> tuple[str, ...]:
    """Return "section.key" of every field."""
    return tuple(
        f"{section}.{each.name}"
        for section, kind in SECTIONS.items()
        for each in dataclasses.fields(kind)
    )


def path_names() -> tuple[str, ...]:
    """Return "section.key" of the fields that name a file or a folder."""
    described = (each for s, kind in SECTIONS.items() for each in _describe_section(s, kind))
    return tuple(each["name"] for each in described if each["kind"] == "path")


def form_texts(values: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return a configuration, or a part of one, as the page holds it: "section.key" -> text."""
    return {
        f"{section}.{key}": _text(value)
        for section, keys in values.items()
        for key, value in keys.items()
    }


def _describe_section(section: str, kind: type) -> list[Described]:
    hints = typing.get_type_hints(kind)
    return [_describe(section, each, hints[each.name]) for each in dataclasses.fields(kind)]


def _describe(section: str, field: dataclasses.Field[Any], hint: object) -> Described:
    words = field.metadata
    default = _text(field.default) if field.default is not MISSING else ""
    name = f"{section}.{field.name}"
    kind = "choice" if words["choices"] else KINDS[_plain(hint)]
    return {
        "name": name,
        "kind": "lines" if name in SEVERAL_LINES else kind,
        "label": words["label"],
        "help": words["help"],
        "range": words["range"] and list(words["range"]),
        "choices": words["choices"] and list(words["choices"]),
        "default": default,
    }


def _plain(hint: object) -> type:
    """Return the type of a field's values, without the `None` that leaves it empty."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    return typing.cast(type, hint)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def problems_of(error: ConfigError) -> Sequence[tuple[str, str]]:
    """Return the problems, each at a field of the page: one of a whole section stands at its first field."""
    names = known_names()
    return [
        (name if name in names else next((n for n in names if n.startswith(f"{name}.")), ""), words)
        for name, words in error.problems
    ]
