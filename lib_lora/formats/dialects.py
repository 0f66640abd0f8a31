"""How files name layers and tensors.

A name in a file is looked up in a table of aliases made from the layers of the base: its paths are flattened, LoRA names are never
taken apart. Dialects: "kohya" (flattened diffusers paths), "kohya-sgm" (flattened paths of the original checkpoint), "diffusers"
(dotted paths after the component's prefix, PEFT's tensor names) and "peft" (the same without the component's prefix).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lib_lora.families.table import Component, Layer
from lib_lora.networks.lora import ALPHA, DOWN, UP

# PEFT's tensor names and ours; "default" is the name that PEFT gives to an adapter without one.
PEFT_SUFFIXES = {
    "lora_A.weight": DOWN,
    "lora_B.weight": UP,
    "lora_A.default.weight": DOWN,
    "lora_B.default.weight": UP,
}
PEFT_WRAPPER = "base_model.model."
CLIP_WRAPPER = "text_model."  # in the names of transformers 4, not in those of transformers 5


class Alias(NamedTuple):
    """The layer that a name stands for, and the dialect that spells it so."""

    layer: str
    dialect: str


def alias_table(layers: Iterable[Layer], components: Iterable[Component]) -> dict[str, Alias]:
    """Return every name that a file may give to these layers."""
    known = {component.name: component for component in components}
    table: dict[str, Alias] = {}
    for layer in layers:
        component = known.get(layer.component)
        if component is None:
            continue
        for dialect, name in _names(layer, component):
            table.setdefault(name, Alias(layer.id, dialect))
    return table


def _names(layer: Layer, component: Component) -> tuple[tuple[str, str], ...]:
    short = layer.path.removeprefix(CLIP_WRAPPER)
    return (
        ("kohya", kohya_name(layer, component)),
        ("kohya-sgm", sgm_name(layer, component)),
        ("diffusers", diffusers_name(layer, component)),
        ("diffusers", f"{component.diffusers}.{short}"),
        ("peft", layer.path),
        ("peft", short),
    )


def kohya_name(layer: Layer, component: Component) -> str:
    """Return kohya's name of a layer, such as "lora_unet_mid_block_attentions_0_proj_in"."""
    return f"{component.kohya}_{layer.path.replace('.', '_')}"


def sgm_name(layer: Layer, component: Component) -> str:
    """Return kohya's name of a layer after the original checkpoint, such as "lora_unet_middle_block_1_proj_in"."""
    path = layer.weight.key.removeprefix(component.checkpoint).removesuffix(".weight")
    return f"{component.kohya}_{path.replace('.', '_')}"


def diffusers_name(layer: Layer, component: Component) -> str:
    """Return the name of a layer in a diffusers file, such as "unet.mid_block.attentions.0.proj_in"."""
    return f"{component.diffusers}.{layer.path}"


def split_key(key: str, aliases: Mapping[str, Alias]) -> tuple[str, str]:
    """Return the layer's name and our suffix of a tensor's key; the suffix is as written where we know no other."""
    flat, _, rest = key.partition(".")
    if flat in aliases:
        return flat, rest
    at = key.rfind(".lora_")
    name, suffix = (key[:at], key[at + 1 :]) if at > 0 else _split_last(key)
    return name.replace(PEFT_WRAPPER, "", 1), PEFT_SUFFIXES.get(suffix, suffix)


def _split_last(key: str) -> tuple[str, str]:
    if key.endswith(f".{ALPHA}"):
        return key[: -len(ALPHA) - 1], ALPHA
    flat, _, rest = key.partition(".")
    return flat, rest
