"""Which tensors of a file belong to which layer, by their names and shapes alone; every other one with the reason why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lib_lora.families.sd1 import INPAINTING_CHANNELS, LATENT_CHANNELS
from lib_lora.families.table import WHOLE, Layer, Part
from lib_lora.formats.dialects import DENOISER, Alias, Located, locate
from lib_lora.formats.fused import (
    cut,
    cut_misfit,
    cut_shapes,
    is_cut_kron,
    is_whole,
    kron_part,
    kron_rows,
    own_pair,
)
from lib_lora.formats.header import Header
from lib_lora.formats.suffixes import DORA, LORA_BIAS, SCALE, dora_shape, is_magnitude
from lib_lora.networks.compose import (
    EXTRACTED_TYPES,
    NETWORK_TYPES,
    incomplete,
    network_type_of,
)
from lib_lora.networks.contract import ALPHA, NetworkType, Shape, Shapes, misfit, shapes_of
from lib_lora.networks.full import BIAS, DIFFERENCE, FULL
from lib_lora.networks.lora import DOWN, UP
from lib_lora.networks.narrow import narrowed

EMBEDDING = "bundle_emb."
BIASES = frozenset(kind.bias for kind in (*EXTRACTED_TYPES, *NETWORK_TYPES) if kind.bias)
BIASES |= {LORA_BIAS}

Judgement = tuple[NetworkType | None, str | None]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A tensor that is not applied, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Matched:
    """The tensors of a file by layer id and suffix, as keys of the file; the rest with reasons.

    parts: for a layer whose tensors are those of several, or lie in another order, what of them is its own.
    """

    dialect: str
    layers: dict[str, dict[str, str]]
    unmatched: list[Unmatched]
    parts: dict[str, Part]


def match_tensors(header: Header, aliases: Mapping[str, Alias]) -> Matched:
    """Sort the tensors of a file into layers by their names alone; the dialect is that of most of them."""
    named: dict[tuple, dict[str, str]] = {}
    unmatched: list[Unmatched] = []
    dialects: Counter[str] = Counter()
    for key in header.tensors:
        located = locate(key, aliases)
        if located.alias is None or not located.alias.targets:
            unmatched.append(Unmatched(key, _stranger(key, located)))
            continue
        dialects[located.dialect] += 1
        keys = named.setdefault(located.alias.targets, {})
        if located.suffix in keys:
            reason = f"{keys[located.suffix]!r} already names the same tensor"
            unmatched.append(Unmatched(key, reason))
        else:
            keys[located.suffix] = key
    dialect = dialects.most_common(1)[0][0] if dialects else "unknown"
    matched = Matched(dialect, {}, unmatched, {})
    for targets, keys in named.items():
        if any(layer in matched.layers for layer, _ in targets):
            reason = "its layer goes by another name as well, which came first"
            unmatched.extend(Unmatched(key, reason) for key in keys.values())
            continue
        for layer, part in targets:
            matched.layers[layer] = keys
            if not is_whole(part):
                matched.parts[layer] = part
    return matched


def _stranger(key: str, located: Located) -> str:
    if key.startswith(EMBEDDING):
        return "a bundled embedding, not a change of a layer"
    if located.alias is not None:
        return "more than one component of the base has a layer of this name"
    return "the base has no layer of this name"


def settle(
    matched: Matched, header: Header, layers: Mapping[str, Layer] | None
) -> dict[str, NetworkType]:
    """Return the type of every layer whose tensors belong together and fit; the tensors of the others join the unmatched.

    layers: those of the base, `None` when there is no base to fit, as it is for a layer without a shape.
    """
    kinds: dict[str, NetworkType] = {}
    judged: dict[tuple[object, ...], Judgement] = {}  # layers that are alike are judged once
    # a tensor that is several layers is refused once
    refused = _homeless_biases(matched, layers) if layers is not None else {}
    for layer_id, keys in matched.layers.items():
        layer = layers[layer_id].shape or None if layers is not None else None
        part = matched.parts.get(layer_id, WHOLE)
        shapes = {suffix: header.tensors[key].shape for suffix, key in keys.items()}
        if DORA in keys and is_magnitude(keys[DORA]):
            shapes[DORA] = dora_shape(shapes[DORA])
        case = (*shapes.items(), part, layer)
        if case not in judged:
            judged[case] = _judged(shapes, part, layer)
        kind, reason = judged[case]
        if kind is not None and reason is None:
            kinds[layer_id] = kind
        else:
            refused |= {key: str(reason) for key in keys.values()}
    matched.unmatched.extend(Unmatched(key, reason) for key, reason in refused.items())
    return kinds


def _judged(shapes: Shapes, part: Part, layer: Shape | None) -> Judgement:
    """Return a layer's type, and why its tensors cannot be used, `None` when they can."""
    if part is not WHOLE:
        if is_cut_kron(shapes, part):
            return FULL, misfit(FULL, {DIFFERENCE: kron_part(shapes, part)}, layer)
        reason = cut_misfit(shapes, part)
        if reason is not None:
            return None, reason
        shapes = cut_shapes(shapes, part)
    if DOWN in shapes:
        for written, ours in ((SCALE, ALPHA), (LORA_BIAS, BIAS)):
            if written in shapes and ours not in shapes:
                shapes = {ours if s == written else s: shape for s, shape in shapes.items()}
    return type_for(shapes, layer)


def type_for(shapes: Shapes, layer: Shape | None) -> Judgement:
    """Return the type of a layer's tensors, and why they cannot change a layer of this shape, `None` when they can.

    A network that is made for a latent alone fits an inpainting model's first convolution.
    """
    kind = network_type_of(shapes)
    reason = _reason(kind, shapes, layer)
    if reason is not None and kind is not None and layer is not None and _sees_a_mask(layer):
        narrow = narrowed(kind, LATENT_CHANNELS)
        if misfit(narrow, shapes, layer) is None:
            return narrow, None
    return kind, reason


def _sees_a_mask(layer: Shape) -> bool:
    return len(layer) == 4 and layer[1] == INPAINTING_CHANNELS


def _homeless_biases(matched: Matched, layers: Mapping[str, Layer]) -> dict[str, str]:
    """Take what would change a bias off the layers that have none; return these tensors with the reason."""
    homeless: dict[str, str] = {}
    for layer_id, keys in matched.layers.items():
        layer = layers[layer_id]
        if layer.bias is None and layer.shape and not BIASES.isdisjoint(keys):
            own = {suffix: key for suffix, key in keys.items() if suffix in BIASES}
            homeless |= dict.fromkeys(own.values(), "the layer has no bias in this base")
            matched.layers[layer_id] = {s: key for s, key in keys.items() if s not in BIASES}
    return homeless


def _reason(kind: NetworkType | None, shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why tensors of these shapes cannot change a layer of this shape, `None` when they can."""
    if kind is not None:
        return misfit(kind, shapes, layer)
    missing = incomplete(shapes)
    if missing:
        return f"{', '.join(sorted(missing))} of this layer is missing"
    return f"tensors named {', '.join(sorted(shapes))} belong to no supported network type"


def layer_tensors(
    matched: Matched, layer_id: str, stored: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of one layer that `settle` has found good, of those that the file holds by key."""
    keys, part = matched.layers[layer_id], matched.parts.get(layer_id, WHOLE)
    tensors = {suffix: stored[key] for suffix, key in keys.items()}
    if DORA in keys and is_magnitude(keys[DORA]):
        tensors[DORA] = tensors[DORA].reshape(dora_shape(tuple(tensors[DORA].shape)))
    if part is not WHOLE:
        kohyas = keys.get(UP, "").startswith(DENOISER)
        tensors = _own_tensors(tensors, part, alpha_of_one=kohyas)
    if DOWN in tensors and SCALE in tensors and ALPHA not in tensors:
        tensors[ALPHA] = tensors.pop(SCALE) * len(tensors[DOWN])
    return tensors


def _own_tensors(whole: dict[str, Tensor], part: Part, *, alpha_of_one: bool) -> dict[str, Tensor]:
    """Return what of the tensors of several layers is one's own."""
    if is_cut_kron(shapes_of(whole), part):
        return {DIFFERENCE: kron_rows(whole, part)}
    own = {suffix: cut(suffix, tensor, part) for suffix, tensor in whole.items()}
    if UP in whole and part.of > 1:
        own |= own_pair(whole, part, alpha_of_one=alpha_of_one)
    return own
