"""The ranks and alphas that diffusers keeps in a file's metadata, since PEFT's tensors hold no alpha.

Under `lora_adapter_metadata` lies a JSON object with the fields of PEFT's LoraConfig, each after the component's prefix
("unet.lora_alpha"; without a prefix when the file holds one component). A pattern names a layer whose value differs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from lib_lora.errors import FileFormatError

KEY = "lora_adapter_metadata"
PEFT_DEFAULT_ALPHA = 8.0

Fields = Mapping[str, object]
Number = TypeVar("Number", int, float)


def read_fields(metadata: Mapping[str, str]) -> Fields | None:
    """Return the fields of a file's adapter metadata, `None` when it has none; raises FileFormatError when they are no object."""
    if KEY not in metadata:
        return None
    try:
        fields = json.loads(metadata[KEY])
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise FileFormatError(
            f"The metadata {KEY!r}, which holds the alphas, cannot be read; the strength of this network is unknown."
        )
    return fields


def alpha_of(fields: Fields, prefix: str, path: str, rank: int) -> float:
    """Return the alpha, as kohya means it, of a layer.

    prefix: the component's prefix in diffusers files; rsLoRA's alpha / sqrt(rank) (Kalajdzievski, 2023) becomes the alpha whose
    quotient with the rank is the same. A component that the fields do not mention has alpha = rank.
    """
    dotted = f"{prefix}." if any(key.startswith(f"{prefix}.") for key in fields) else ""
    if not {f"{dotted}r", f"{dotted}lora_alpha"} & fields.keys():
        return float(rank)
    alpha = fields.get(f"{dotted}lora_alpha", PEFT_DEFAULT_ALPHA)
    patterns = fields.get(f"{dotted}alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise FileFormatError(f"The metadata {KEY!r} has an alpha_pattern that is not an object.")
    for pattern, value in patterns.items():
        name = pattern.removeprefix("^").removesuffix("$")
        if path == name or path.endswith(f".{name}"):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise FileFormatError(f"The metadata {KEY!r} gives {path!r} the alpha {alpha!r}.")
    return alpha * math.sqrt(rank) if fields.get(f"{dotted}use_rslora") else float(alpha)


def write_fields(layers: Iterable[tuple[str, str, int, float]]) -> str:
    """Return the JSON text of layers given as (component prefix, path, rank, alpha)."""
    grouped: dict[str, list[tuple[str, int, float]]] = {}
    for prefix, path, rank, alpha in layers:
        grouped.setdefault(prefix, []).append((path, rank, alpha))
    fields: dict[str, object] = {}
    for prefix, group in grouped.items():
        usual_rank = _commonest(rank for _, rank, _ in group)
        usual_alpha = _commonest(alpha for _, _, alpha in group)
        fields |= {
            f"{prefix}.r": usual_rank,
            f"{prefix}.lora_alpha": usual_alpha,
            f"{prefix}.rank_pattern": {path: r for path, r, _ in group if r != usual_rank},
            f"{prefix}.alpha_pattern": {path: a for path, _, a in group if a != usual_alpha},
            f"{prefix}.target_modules": sorted(path for path, _, _ in group),
        }
    return json.dumps(fields, sort_keys=True)


def _commonest(values: Iterable[Number]) -> Number:
    """Return the value that is there most often, the smallest of several, whatever their order."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))
