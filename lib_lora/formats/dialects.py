"""How files name layers.

A name in a file is looked up in a table of aliases made from the layers of the base: paths are flattened (dots become underscores),
names are never taken apart. A layer goes by its diffusers path and by its path in the original checkpoint, each after the prefixes
below; a name of the original may cover several of our layers (fused q, k, v) or hold a layer in another order.

    kohya       lora_unet_ or lora_te_ and the flattened diffusers path
    kohya-sgm   the same with the flattened original path: what kohya's trainer writes for the denoisers of SDXL and SD3
    onetrainer  lora_transformer_ and the flattened diffusers path; the dotted original path alone
    lycoris     lycoris_ and a flattened path of either kind
    diffusers   unet. or text_encoder. and the dotted diffusers path, in every generation of diffusers
    peft        the dotted diffusers path alone, or after base_model.model.
    comfy       diffusion_model. and the dotted original path; text_encoders.clip_l.transformer. and the diffusers path
    hcp         the dotted diffusers path before ".___."
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lib_lora.families.table import WHOLE, Component, Family, Layer, Part, Placement
from lib_lora.formats.suffixes import HCP_SEPARATOR, HCP_SUFFIXES, our_suffix
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.oft import CONSTRAINT

PEFT_WRAPPER = "base_model.model."
CLIP_WRAPPER = "text_model."  # in the names of transformers 4, not in those of transformers 5
FLAT_CLIP_WRAPPER = CLIP_WRAPPER.replace(".", "_")
DENOISER = "lora_unet"  # kohya's prefix of the denoiser of every family
TEXT_ENCODER = "lora_te"  # kohya's prefix of a text encoder, with a number where there are several
LYCORIS = "lycoris_"
KOHYA = "lora_"
KOHYA_OFT = "oft_"  # what kohya's networks/oft.py writes for it; its alpha is a bound even if 0
AMBIGUOUS = "ambiguous"

# ComfyUI's prefix of a component, by its prefix in an original checkpoint.
COMFY_PREFIXES = {
    "model.diffusion_model.": "diffusion_model.",
    "cond_stage_model.transformer.": "text_encoders.clip_l.transformer.",
    "cond_stage_model.model.": "text_encoders.clip_h.transformer.",
    "conditioner.embedders.0.transformer.": "text_encoders.clip_l.transformer.",
    "conditioner.embedders.1.model.": "text_encoders.clip_g.transformer.",
    "conditioner.embedders.0.model.": "text_encoders.clip_g.transformer.",
}
# HCP-Diffusion's prefixes, and diffusers' for the same.
HCP_PREFIXES = {
    "denoiser.": "",
    "TE.": "",
    "clip_B.": "text_encoder.",
    "clip_L.": "text_encoder.",
    "clip_bigG.": "text_encoder_2.",
}
# The first generation of diffusers: "attn1.processor.to_out_lora.down.weight", "self_attn.to_out_lora.down.weight".
OLD_ATTENTION = re.compile(r"^(.*?)(?:\.processor)?\.to_(q|k|v|out)_lora\.(down|up)\.weight$")


class Target(NamedTuple):
    """A layer, and which part of the named tensor it is."""

    layer: str
    part: Part


class Alias(NamedTuple):
    """The layers that a name stands for, and the dialect that spells it so; no layer when the name could be of two components."""

    targets: tuple[Target, ...]
    dialect: str


class Located(NamedTuple):
    """What a key of a file names: `alias` is `None` for a stranger."""

    alias: Alias | None
    dialect: str
    suffix: str


def alias_table(layers: Iterable[Layer], components: Iterable[Component]) -> dict[str, Alias]:
    """Return every name that a file may give to these layers, flattened."""
    known = {component.name: component for component in components}
    prefixes = {name: _prefixes(component) for name, component in known.items()}
    short_prefixes = {name: _short_prefixes(found) for name, found in prefixes.items()}
    table: dict[str, Alias] = {}
    originals: dict[tuple[str, str], list[Target]] = {}
    for layer in layers:
        component = known.get(layer.component)
        if component is None:
            continue
        whole, flat = Target(layer.id, WHOLE), _flat(layer.path)
        _add(table, flat, (whole,), prefixes[layer.component])
        if flat.startswith(FLAT_CLIP_WRAPPER):
            short = flat.removeprefix(FLAT_CLIP_WRAPPER)
            _add(table, short, (whole,), short_prefixes[layer.component])
        place = (component.name, _flat(original_path(layer, component)))
        part = _order(layer.weight.part)
        originals.setdefault(place, []).append(whole if part is WHOLE else Target(layer.id, part))
    original_prefixes = {name: _original_prefixes(component) for name, component in known.items()}
    for (name, flat), targets in originals.items():
        _add(table, flat, tuple(targets), original_prefixes[name])
    return table


def layers_of(family: Family) -> dict[str, Layer]:
    """Return by its id every layer that a base of the family may have; without a base their shapes are not known."""
    layers = (
        Layer(
            component.name,
            row.path,
            Placement(component.checkpoint + row.weight, row.part),
            None,
            (),
            row.block,
        )
        for component in family.components
        for row in component.rows
    )
    return {layer.id: layer for layer in layers}


def _prefixes(component: Component) -> list[tuple[str, str]]:
    """Return the dialects that name the component's layers by their diffusers paths, with their flattened prefixes."""
    found = [
        ("kohya", f"{component.kohya}_"),
        ("diffusers", f"{component.diffusers}_"),
        ("peft", ""),
    ]
    if component.kohya == DENOISER:
        found.append(("onetrainer", f"lora_{component.diffusers}_"))
    elif component.kohya.startswith(TEXT_ENCODER):
        found.append(("comfy", _flat(comfy_prefix(component))))
    return found


def _original_prefixes(component: Component) -> list[tuple[str, str]]:
    """Return the same for their paths in the original checkpoint."""
    found = [("kohya-sgm", f"{component.kohya}_")]
    if component.kohya == DENOISER:
        found += [("comfy", _flat(comfy_prefix(component))), ("onetrainer", "")]
    return found


def _short_prefixes(prefixes: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those of the dialects that follow transformers 5, whose names lack CLIP's wrapper."""
    return [(dialect, prefix) for dialect, prefix in prefixes if dialect in ("diffusers", "peft")]


def _add(
    table: dict[str, Alias],
    flat: str,
    targets: tuple[Target, ...],
    prefixes: Iterable[tuple[str, str]],
) -> None:
    """Add what the dialects call a layer, or several; the first to have a name keeps it, but for a name without a prefix."""
    for dialect, prefix in prefixes:
        alias = tuple.__new__(Alias, (targets, dialect))  # as Alias() does, in half the time
        there = table.setdefault(prefix + flat, alias)
        if there is not alias and dialect == "peft" and there.targets != targets:
            table[prefix + flat] = Alias((), AMBIGUOUS)


def _order(part: Part) -> Part:
    """Return what of a part matters to a network; a 1x1 convolution and a linear layer take the same one.

    The transposed layer, `text_projection`, is called the same in both layouts: its networks are read in the order of diffusers'.
    """
    if part.of == 1 and not part.swap_halves:
        return WHOLE
    return Part(part.index, part.of, swap_halves=part.swap_halves)


def _flat(path: str) -> str:
    return path.replace(".", "_")


def original_path(layer: Layer, component: Component) -> str:
    """Return the path in the original checkpoint of the tensor that a layer is, or is a part of."""
    path = layer.weight.key.removeprefix(component.checkpoint)
    return path.removesuffix("weight").rstrip("._")


def comfy_prefix(component: Component) -> str:
    """Return ComfyUI's prefix; SD3's text encoders are called as in the checkpoint."""
    return COMFY_PREFIXES.get(component.checkpoint, component.checkpoint)


def locate(key: str, aliases: Mapping[str, Alias]) -> Located:
    """Look up a tensor's key; the suffix is as written where we know no other."""
    name, dot, written = key.partition(".")
    alias = aliases.get(name)
    if alias is not None and dot:
        return Located(alias, alias.dialect, our_suffix(written))
    if HCP_SEPARATOR in key:
        return _locate_hcp(key, aliases)
    for prefix, stands_for in ((LYCORIS, ""), (KOHYA_OFT, KOHYA)):
        if name.startswith(prefix):
            alias = aliases.get(stands_for + name.removeprefix(prefix))
            dialect = "lycoris" if not stands_for else alias.dialect if alias else ""
            bound = stands_for and written == ALPHA
            return Located(alias, dialect, CONSTRAINT if bound else our_suffix(written))
    return _locate_dotted(_modern(key.replace(PEFT_WRAPPER, "", 1)), aliases)


def _locate_dotted(key: str, aliases: Mapping[str, Alias]) -> Located:
    """Look up the longest beginning of a key that is a name."""
    words = key.split(".")
    for count in range(len(words) - 1, 0, -1):
        alias = aliases.get("_".join(words[:count]))
        if alias is not None:
            return Located(alias, alias.dialect, our_suffix(".".join(words[count:])))
    return Located(None, "", "")


def _modern(key: str) -> str:
    """Return a key of diffusers' first generation as its second writes it."""
    old = OLD_ATTENTION.match(key) if "_lora." in key else None
    if old is None:
        return key
    attention, part, way = old.groups()
    if attention.endswith("self_attn"):
        return f"{attention}.{part}_proj.lora.{way}.weight"
    return f"{attention}.to_{part}{'.0' if part == 'out' else ''}.lora.{way}.weight"


def _locate_hcp(key: str, aliases: Mapping[str, Alias]) -> Located:
    path, _, written = key.rpartition(":")[2].partition(HCP_SEPARATOR)
    for theirs, ours in HCP_PREFIXES.items():
        if path.startswith(theirs):
            path = ours + path.removeprefix(theirs)
    return Located(aliases.get(_flat(path)), "hcp", HCP_SUFFIXES.get(written, written))


def kohya_name(layer: Layer, component: Component) -> str:
    """Return the flattened diffusers path after kohya's prefix, such as "lora_unet_mid_block_attentions_0_proj_in"."""
    return f"{component.kohya}_{_flat(layer.path)}"


def kohya_original_name(layer: Layer, component: Component) -> str:
    """Return the flattened original path after kohya's prefix, such as "lora_unet_middle_block_1_proj_in"."""
    return f"{component.kohya}_{_flat(original_path(layer, component))}"


def kohya_oft_name(name: str) -> str:
    """Return the name that kohya gives to a layer's OFT, for the one it gives to any other network of the layer."""
    return KOHYA_OFT + name.removeprefix(KOHYA)


def onetrainer_name(layer: Layer, component: Component) -> str:
    """Return OneTrainer's own ("legacy") name: kohya's, but for transformers, which are called so."""
    prefix = f"lora_{component.diffusers}" if component.kohya == DENOISER else component.kohya
    return f"{prefix}_{_flat(layer.path)}"


def diffusers_name(layer: Layer, component: Component) -> str:
    """Return the name of a layer in a diffusers file, such as "unet.mid_block.attentions.0.proj_in"."""
    return f"{component.diffusers}.{layer.path}"


def peft_name(layer: Layer, component: Component) -> str:
    """Return the name of a layer in a file of PEFT, which holds one component alone."""
    return f"{PEFT_WRAPPER}{layer.path}"


def comfy_name(layer: Layer, component: Component) -> str:
    """Return ComfyUI's generic name, such as "diffusion_model.middle_block.1.proj_in"."""
    if component.kohya == DENOISER:
        return comfy_prefix(component) + original_path(layer, component)
    return comfy_prefix(component) + layer.path


def trained_under_original_names(components: Sequence[Component]) -> bool:
    """Tell whether kohya's trainer names the denoiser's layers by the original checkpoint.

    It does so for SDXL and SD3, the families whose text encoders it numbers.
    """
    return all(component.kohya != TEXT_ENCODER for component in components)
