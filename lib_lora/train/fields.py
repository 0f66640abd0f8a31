"""Configuration fields that describe themselves, and the reading of one section of them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from lib_lora.errors import did_you_mean

Value = bool | int | float | str | Path
_TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def about(
    label: str,
    help: str,
    range: tuple[float, float] | None = None,
    choices: Sequence[str] | None = None,
) -> dict[str, object]:
    """Return the metadata of a field: the words and the limits that a form, the CLI and the docs show."""
    return {"label": label, "help": help, "range": range, "choices": choices}


def from_text(text: str, hint: object) -> object:
    """Read a text as a field's type; what does not read stays a text, so that `read_section` names it."""
    if hint is bool:
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    if hint == Path | None:
        return text or None
    return text


def read_section(
    section: str, kind: type, raw: object, folder: Path, problems: list[tuple[str, str]]
) -> dict[str, Value | None]:
    """Return the values of a record's fields, defaults filled in; every problem is added to `problems`.

    kind: a dataclass whose fields carry `about`; folder: where relative paths start. A value that is wrong by itself is `None`.
    """
    fields = {each.name: each for each in dataclasses.fields(kind)}
    if not isinstance(raw, Mapping):
        problems.append((section, f"A section holds keys and values; found {raw!r}."))
        raw = {}
    problems += [
        (f"{section}.{key}", f"There is no such key. {did_you_mean(str(key), fields)}")
        for key in raw
        if key not in fields
    ]
    values = {}
    for name, hint in typing.get_type_hints(kind).items():
        value, problem = fields[name].default, None
        if name in raw:
            value, problem = _read_value(raw[name], hint, fields[name].metadata, folder)
        elif value is MISSING:
            value, problem = None, "This must be given."
        if problem:
            problems.append((f"{section}.{name}", problem))
        values[name] = None if problem else value
    return values


def _read_value(
    raw: object, hint: Any, words: Mapping[str, Any], folder: Path
) -> tuple[Value | None, str | None]:
    """Return the value in the field's type, and what is wrong with it."""
    if hint == Path | None and raw is None:
        return None, None
    if hint in (Path, Path | None):
        if not isinstance(raw, str | Path) or not str(raw):
            return None, f"Expects a path; found {raw!r}."
        return _read_path(Path(raw), folder)
    if type(raw) is not hint and (hint, type(raw)) != (float, int):
        return None, f"Expects {_TYPE_WORDS[hint]}; found {raw!r}."
    if problem := _outside(raw, words):
        return None, problem
    return hint(raw), None


def _read_path(path: Path, folder: Path) -> tuple[Path | None, str | None]:
    try:
        return Path(folder, path.expanduser()).absolute(), None
    except RuntimeError:
        return None, f"There is no home folder {path.parts[0]!r}."


def _outside(value: Any, words: Mapping[str, Any]) -> str | None:
    choices, limits = words["choices"], words["range"]
    if choices and value not in choices:
        return f"{value!r} is not accepted. {did_you_mean(str(value), choices)}"
    if limits and not limits[0] <= value <= limits[1]:
        return f"Accepts {limits[0]:g} to {limits[1]:g}; found {value}."
    return None
