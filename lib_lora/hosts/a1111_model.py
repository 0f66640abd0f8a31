"""Finding things in the WebUI: the live modules of the loaded model, and the network files that prompts can name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from modules import shared
from torch import nn

from lib_lora.apply.session import LoadedNetwork
from lib_lora.families.table import WHOLE, Layer

_WEIGHT = ".weight"
# The host wraps text encoders, and the embeddings inside of them.
_WRAPPED = ".wrapped."
_UNSAFE = str.maketrans("", "", ":,")


def live_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """Return the modules of the host's model by layer id; its paths are those of the original checkpoint's keys.

    Layers that share a module with others, such as the fused attention of OpenCLIP, have none of their own.
    """
    named = {name.replace(_WRAPPED, "."): module for name, module in model.named_modules()}
    fused = tuple(
        f"{name}." for name, module in named.items() if isinstance(module, nn.MultiheadAttention)
    )
    found = {}
    for layer_id, layer in layers.items():
        key = layer.weight.key
        module = named.get(key.removesuffix(_WEIGHT))
        whole = layer.weight.part == WHOLE and not key.startswith(fused)
        if module is not None and whole and hasattr(module, "weight"):
            found[layer_id] = module
    return found


def absent_note(loaded: LoadedNetwork, modules: Mapping[str, nn.Module]) -> str | None:
    """Return a sentence that names what of a network has no module in the host's model."""
    absent = [layer_id for layer_id in loaded.layers if layer_id not in modules]
    if not absent:
        return None
    return (
        f"{len(absent)} layers of the LoRA {loaded.name!r} are left out, such as {absent[0]}:"
        " the WebUI computes them together with others."
    )


def network_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the file of every name and alias that the host's Lora extension knows; it looks again when one of `names` is new."""
    import networks

    def known() -> dict[str, Any]:
        aliases = networks.available_network_aliases.items()
        forbidden = networks.forbidden_network_aliases
        free = {alias: disk for alias, disk in aliases if alias.lower() not in forbidden}
        return {**free, **networks.available_networks}

    if not known().keys() >= set(names):
        networks.list_available_networks()
    return {name: Path(disk.filename) for name, disk in known().items()}


def bring_up_to_date(modules: Iterable[nn.Module]) -> None:
    """Let the host write into these modules what it would write at their next evaluation."""
    import networks

    if not shared.opts.lora_functional:
        for module in modules:
            networks.network_apply_weights(module)


def add_hashes(p: Any, names: Iterable[str]) -> None:
    """Add these networks to the picture's `Lora hashes`, where the host has put those of its own."""
    import networks

    if not shared.opts.lora_add_hashes_to_infotext:
        return
    hashes = dict(getattr(p, "lora_hashes", None) or {})
    for name in names:
        disk = networks.available_network_aliases.get(name)
        if disk is not None:
            disk.read_hash()
            hashes[name.translate(_UNSAFE)] = disk.shorthash
    if hashes:
        p.lora_hashes = hashes
        shown = ", ".join(f"{name}: {digest}" for name, digest in hashes.items())
        p.extra_generation_params["Lora hashes"] = shown
