"""The ranks and alphas that diffusers and PEFT keep beside the tensors, since PEFT's tensors hold no alpha.

In the metadata of a diffusers file lies, under `lora_adapter_metadata`, a JSON object with the fields of PEFT's LoraConfig, each
after the component's prefix ("unet.lora_alpha"; without a prefix when the file holds one component). A PEFT folder has the same
fields in `adapter_config.json`. A pattern names the layers whose value differs: the end of their path, or a regular expression.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from lib_lora.errors import FileFormatError

KEY = "lora_adapter_metadata"
CONFIG = "adapter_config.json"
PEFT_DEFAULT_ALPHA = 8.0

# A pattern comes from a file: what could take long to match is refused. Repetition is only of one character, and not often.
PLAIN_PATTERN = re.compile(r"[\w.]+")
HARMLESS_PATTERN = re.compile(
    r"\^?(?:\.\*|\.\+|(?:\\d|\[0-9\]|\[\d+(?:-\d+)?\])[+*]?|\\\.|[\w.|()]|\?:)+\$?"
)
MAX_REPETITIONS = 3
MAX_PATTERN = 400

Fields = Mapping[str, object]
Number = TypeVar("Number", int, float)


def read_fields(metadata: Mapping[str, str]) -> Fields | None:
    """Return the fields of a file's adapter metadata, `None` when it has none; raises FileFormatError when they are no object."""
    return parse_fields(metadata[KEY], f"metadata {KEY!r}") if KEY in metadata else None


def parse_fields(text: str, where: str) -> Fields:
    """Return the JSON object that a text is; raises FileFormatError, which says where the text lies, when it is none."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise FileFormatError(
            f"The {where}, which holds the alphas, cannot be read; the strength of this network is unknown."
        )
    return fields


def alpha_of(fields: Fields, prefix: str, path: str, rank: int) -> float:
    """Return the alpha, as kohya means it, of a layer.

    prefix: the component's prefix in diffusers files; rsLoRA's alpha / sqrt(rank) (Kalajdzievski, 2023) becomes the alpha whose
    quotient with the rank is the same. A component that the fields do not mention has alpha = rank. Raises FileFormatError for an
    alpha that cannot be told.
    """
    dotted = f"{prefix}." if any(key.startswith(f"{prefix}.") for key in fields) else ""
    if not {f"{dotted}r", f"{dotted}lora_alpha"} & fields.keys():
        return float(rank)
    alpha = fields.get(f"{dotted}lora_alpha", PEFT_DEFAULT_ALPHA)
    patterns = fields.get(f"{dotted}alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise FileFormatError(f"{KEY} or {CONFIG} has an alpha_pattern that is not an object.")
    alpha = next((value for pattern, value in patterns.items() if _names(pattern, path)), alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise FileFormatError(f"{KEY} or {CONFIG} gives {path!r} the alpha {alpha!r}.")
    return alpha * math.sqrt(rank) if fields.get(f"{dotted}use_rslora") else float(alpha)


def _names(pattern: str, path: str) -> bool:
    """Tell whether a pattern names a layer as PEFT sees it: the whole path after "^", else its end from a dot on."""
    name = pattern.removeprefix("^").removesuffix("$")
    if PLAIN_PATTERN.fullmatch(name):
        return path == name or path.endswith(f".{name}")
    repetitions = pattern.count("*") + pattern.count("+")
    if (
        len(pattern) > MAX_PATTERN
        or repetitions > MAX_REPETITIONS
        or re.search(r"\)[*+?{]", pattern)
        or not HARMLESS_PATTERN.fullmatch(pattern)
    ):
        raise FileFormatError(
            f"{KEY} or {CONFIG} has the pattern {pattern[:80]!r}, which is not read."
        )
    try:
        if pattern.startswith("^"):
            return re.match(pattern, path) is not None
        return re.match(rf"(?:.*\.)?(?:{name})$", path) is not None
    except re.error:
        raise FileFormatError(
            f"{KEY} or {CONFIG} has the pattern {pattern!r}, which is none."
        ) from None


def write_fields(
    layers: Iterable[tuple[str, str, int, float]], others: Fields | None = None
) -> str:
    """Return the JSON text of layers given as (component prefix, path, rank, alpha), and of other fields."""
    grouped: dict[str, list[tuple[str, int, float]]] = {}
    for prefix, path, rank, alpha in layers:
        grouped.setdefault(prefix, []).append((path, rank, alpha))
    fields = {
        f"{prefix}.{name}": value
        for prefix, group in grouped.items()
        for name, value in config_of(group).items()
    }
    return json.dumps({**fields, **(others or {})}, sort_keys=True)


def config_of(layers: Iterable[tuple[str, int, float]]) -> dict[str, object]:
    """Return the fields of layers of one component, given as (path, rank, alpha)."""
    group = list(layers)
    usual_rank = _commonest(rank for _, rank, _ in group)
    usual_alpha = _commonest(alpha for _, _, alpha in group)
    return {
        "r": usual_rank,
        "lora_alpha": usual_alpha,
        "rank_pattern": {path: r for path, r, _ in group if r != usual_rank},
        "alpha_pattern": {path: a for path, _, a in group if a != usual_alpha},
        "target_modules": sorted(path for path, _, _ in group),
    }


def _commonest(values: Iterable[Number]) -> Number:
    """Return the value that is there most often, the smallest of several, whatever their order."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))
