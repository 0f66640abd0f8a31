"""Finding things in the WebUI: the live modules of the loaded model, and the network files that prompts can name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules import sd_hijack, shared
from torch import nn

from lib_lora.apply.fused import Share
from lib_lora.apply.session import LoadedNetwork
from lib_lora.families.table import WHOLE, Layer

log = logging.getLogger(__name__)

_WEIGHT = ".weight"
# The host wraps text encoders, and the embeddings inside of them.
_WRAPPED = ".wrapped."
_UNSAFE = str.maketrans("", "", ":,")


def live_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """Return the modules of the host's model that compute one layer each, by layer id."""
    found = live_layers(model, layers).items()
    return {layer_id: module for layer_id, module in found if isinstance(module, nn.Module)}


def live_layers(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module | Share]:
    """Return what computes each layer in the host's model; its paths are those of the original checkpoint's keys.

    Layers that one module computes together, such as those of OpenCLIP's attention, have shares of it. What is no module, such as
    OpenCLIP's projection, is not found.
    """
    named = {name.replace(_WRAPPED, "."): module for name, module in model.named_modules()}
    attentions = {
        name: module for name, module in named.items() if isinstance(module, nn.MultiheadAttention)
    }
    found: dict[str, nn.Module | Share] = {}
    for layer_id, layer in layers.items():
        path, _, tensor = layer.weight.key.rpartition(".")
        outer = path.rpartition(".")[0]
        if path in attentions or outer in attentions:
            owner = path if path in attentions else outer
            found[layer_id] = _share(attentions[owner], f"{owner}.", layer)
        elif f".{tensor}" == _WEIGHT and hasattr(named.get(path), "weight"):
            whole = layer.weight.part == WHOLE
            found[layer_id] = named[path] if whole else _share(named[path], f"{path}.", layer)
    return found


def _share(module: nn.Module, prefix: str, layer: Layer) -> Share:
    bias = layer.bias.key.removeprefix(prefix) if layer.bias else None
    weight = layer.weight.key.removeprefix(prefix)
    return Share(module, weight, bias, layer.weight.part, bring_up_to_date)


def absent_note(loaded: LoadedNetwork, modules: Mapping[str, nn.Module | Share]) -> str | None:
    """Return a sentence that names what of a network has no module in the host's model."""
    absent = [layer_id for layer_id in loaded.layers if layer_id not in modules]
    if not absent:
        return None
    return (
        f"{len(absent)} layers of the LoRA {loaded.name!r} are left out, such as {absent[0]}:"
        " the WebUI has no module of its own for them."
    )


def network_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the file of every name and alias that the host's Lora extension knows.

    It looks again when one of `names` is new or its file is not where it was.
    """
    import networks

    found = _known_networks()
    if not all(name in found and Path(found[name].filename).is_file() for name in names):
        networks.list_available_networks()
        found = _known_networks()
    return {name: Path(disk.filename) for name, disk in found.items()}


def _known_networks() -> dict[str, Any]:
    """Return what the host's Lora extension knows of each file, by its name and by the aliases that one file alone has."""
    import networks

    # Copied at once, for a request to list them anew may come while a picture is made.
    aliases, named = dict(networks.available_network_aliases), dict(networks.available_networks)
    forbidden = networks.forbidden_network_aliases
    free = {alias: disk for alias, disk in aliases.items() if alias.lower() not in forbidden}
    # A tag's name is read without the spaces around it, which a file's may have.
    bare = {name.strip(): disk for name, disk in {**free, **named}.items()}
    return {**bare, **free, **named}


def bring_up_to_date(module: nn.Module) -> None:
    """Let the host write into a module what it would write at its next evaluation; with functional LoRA into attentions alone."""
    import networks

    if isinstance(module, nn.MultiheadAttention) or not shared.opts.lora_functional:
        networks.network_apply_weights(module)


def say_not_found(names: Sequence[str]) -> None:
    """Say below the picture, in the words of the host's Lora extension, that there are no such networks."""
    if not names:
        return
    sentence = f"Lora not found: {', '.join(names)}"
    sd_hijack.model_hijack.comments.append(sentence)
    if shared.opts.lora_not_found_warning_console:
        log.warning(sentence)


def add_hashes(p: Any, names: Iterable[str]) -> None:
    """Add these networks to the picture's `Lora hashes`, where the host has put those of its own."""
    if not shared.opts.lora_add_hashes_to_infotext:
        return
    hashes, known = dict(getattr(p, "lora_hashes", None) or {}), _known_networks()
    for name in names:
        disk = known.get(name)
        if disk is not None:
            disk.read_hash()
            hashes[name.translate(_UNSAFE)] = disk.shorthash
    if hashes:
        p.lora_hashes = hashes
        shown = ", ".join(f"{name}: {digest}" for name, digest in hashes.items())
        p.extra_generation_params["Lora hashes"] = shown
