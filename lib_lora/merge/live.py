"""What AUTOMATIC1111's WebUI v1.10.1 makes of networks where it is not what their trainers compute: `merge --mode live`.

Its weights are computed by the formulas of `networks`; only what differs is here, and nothing else in this library knows of it:

- Each network's delta is made from the weight as the networks before it left it, in the order of the tags.
- DoRA always norms the input columns, whichever side the magnitudes belong to.
- GLoRA has the factors' names of before LyCORIS 2.2 and no scale, on linear layers alone.
- An alpha of 0 is no bound of an OFT, kohya's neither.
- Under PEFT's names nothing but the two factors is read: no alpha, no DoRA. A bias or a sparse remainder beside factors never is.
- Some layers are not found by their names, some files are refused as a whole, some deltas have no fitting shape. The q, k, v and
  output of OpenCLIP's attention are changed together or not at all, and so are the q, k, v of SD3's; their biases are not.

The deltas are still summed in float64 and rounded once; the WebUI rounds each to the model's precision. Its compatibility mode
(`lora_functional`) computes outputs, not weights, and has no merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.families.sd1 import INPAINTING_CHANNELS, LATENT_CHANNELS
from lib_lora.families.table import Family, Layer
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.dialects import (
    DENOISER,
    alias_table,
    diffusers_name,
    kohya_name,
    kohya_original_name,
)
from lib_lora.formats.header import Header, read_header
from lib_lora.formats.matching import Unmatched, match_tensors, type_for
from lib_lora.formats.network_file import NetworkFile
from lib_lora.formats.suffixes import SCALE
from lib_lora.networks import norm
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import (
    ALPHA,
    Delta,
    LayerNetwork,
    LayerShape,
    NetworkType,
    Shape,
    Tensors,
    shapes_of,
)
from lib_lora.networks.dora import MAGNITUDE
from lib_lora.networks.full import BIAS, FULL
from lib_lora.networks.glora import A1, A2, B1, B2, GLORA, is_old
from lib_lora.networks.ia3 import FACTORS, IA3, ON_INPUT
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import DOWN, LORA, UP
from lib_lora.networks.narrow import narrowed
from lib_lora.networks.norm import NORM
from lib_lora.networks.oft import CONSTRAINT, OFT

PEFT_PAIR = ("lora_A.weight", "lora_B.weight")
# To every delta on an inpainting model's first convolution the WebUI adds five columns, which must be one of four.
NARROW = frozenset(narrowed(kind, LATENT_CHANNELS).id for kind in (LORA, LOHA, LOKR, FULL))
NOT_FOUND = "the live WebUI finds no layer by this name"
# In the order in which it tries them; its OFT is BOFT as well.
TRIED = (LORA, LOHA, IA3, LOKR, FULL, NORM, GLORA, OFT)
ALSO_NEEDED = {NORM.id: {norm.BIAS}, GLORA.id: {ALPHA}}


@dataclass(frozen=True, slots=True)
class Naming:
    """How the WebUI finds the layers of a family; all are patterns of layer ids.

    missed: what it does not find by kohya's name after the diffusers path. fatal: what it finds and then refuses the file for.
    dotted: what it finds by its diffusers name, in families where it splits keys at their last two dots and not at the first.
    """

    missed: tuple[str, ...]
    fatal: tuple[str, ...] = ()
    dotted: tuple[str, ...] = ()


NOWHERE = ("vae.*", "unet.conv_norm_out", "unet.add_embedding.*", "te?.text_projection")
NAMINGS = {
    "sd1": Naming((*NOWHERE, "te1.*embeddings*", "te1.*final_layer_norm")),
    "sd2": Naming((*NOWHERE, "te1.*embeddings*", "te1.*layer_norm*")),
    "sdxl": Naming(
        (*NOWHERE, "unet.up_blocks.0.upsamplers.0.conv", "te2.*embeddings*", "te2.*layer_norm*"),
        fatal=("te1.*embeddings*",),
    ),
    "sdxl-refiner": Naming((*NOWHERE, "te2.*")),
    "sd3": Naming(("*",), dotted=("transformer.*.attn.to_[qkv]", "transformer.*.attn.to_out.0")),
}


def compose_in_turn(base: Tensor, uses: Iterable[tuple[LayerNetwork, float]]) -> Delta:
    """Return the sum of strength * delta, every delta on the weight as the ones before it left it; see `compose`."""
    weight, bias = base, None
    for use in uses:
        part = compose(weight, [use])
        if part.weight is not None:
            weight = weight + part.weight
        if part.bias is not None:
            bias = part.bias if bias is None else bias + part.bias
    return Delta(weight - base, bias)


def as_loaded(file: Path, network: NetworkFile, base: Checkpoint) -> NetworkFile:
    """Return what of a network the WebUI applies, as it computes it; the tensors of the rest join the unmatched.

    Raises UsageError for a folder, which it cannot be given.
    """
    if file.is_dir():
        raise UsageError(f"{file.name} is a folder; the live WebUI loads .safetensors files alone.")
    header = read_header(file)
    matched = match_tensors(header, alias_table(base.layers.values(), base.family.components))
    read = {
        layer_id: _suffixes_read(keys, base.layers[layer_id], base.family)
        for layer_id, keys in matched.layers.items()
    }
    refusal = _file_refusal(header, read, base.family)
    found = {
        layer_id: _own_part(part, matched.layers[layer_id], suffixes, base.layers[layer_id])
        for layer_id, part in network.layers.items()
        if refusal is None and (suffixes := read[layer_id]) is not None
    }
    reasons = {
        layer_id: refusal or NOT_FOUND for layer_id in network.layers if layer_id not in found
    }
    for layer_id, part in found.items():
        reason = misfit(part, base.layers[layer_id].shape)
        if reason is not None:
            reasons[layer_id] = reason
    reasons |= _incomplete(found.keys() - reasons.keys(), base.layers)
    named = {entry.tensor for entry in network.unmatched}
    left_out = {
        key: reason
        for layer_id, reason in reasons.items()
        for key in matched.layers[layer_id].values()
        if key not in named
    }
    return replace(
        network,
        layers={key: translated(part) for key, part in found.items() if key not in reasons},
        unmatched=(*network.unmatched, *(Unmatched(*entry) for entry in left_out.items())),
    )


def webui_suffix(key: str, layer: Layer, family: Family) -> str | None:
    """Return the suffix that the WebUI reads from a tensor's key, `None` when it does not find the layer by it."""
    naming = NAMINGS[family.id]
    component = next(part for part in family.components if part.name == layer.component)
    names = set()
    if not _is_one_of(layer.id, naming.missed):
        names.add(kohya_name(layer, component))
    if component.kohya == DENOISER:
        original = kohya_original_name(layer, component)
        names |= {original, original.replace("lora_", "oft_", 1)}
    if _is_one_of(layer.id, naming.dotted):
        names.add(diffusers_name(layer, component))
    name, *suffix = key.rsplit(".", 2) if naming.dotted else key.split(".", 1)
    return ".".join(suffix) if name in names else None


def _is_one_of(layer_id: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(layer_id, pattern) for pattern in patterns)


def _suffixes_read(keys: Mapping[str, str], layer: Layer, family: Family) -> frozenset[str] | None:
    """Return which tensors of a layer the WebUI knows, by our suffixes; `None` when it does not find the layer.

    keys: our suffix -> key in the file.
    """
    written = {ours: webui_suffix(key, layer, family) for ours, key in keys.items()}
    if not any(written.values()):
        return None
    if (written.get(DOWN), written.get(UP)) == PEFT_PAIR:
        return frozenset({DOWN, UP})
    return frozenset(ours for ours, theirs in written.items() if ours == theirs)


def _file_refusal(
    header: Header, read: Mapping[str, frozenset[str] | None], family: Family
) -> str | None:
    """Return why the WebUI loads nothing of a file, `None` when it loads it."""
    naming = NAMINGS[family.id]
    short = [key for key in header.tensors if naming.dotted and key.count(".") < 2]
    if short:
        return f"the live WebUI refuses a file with a key of so few parts as {short[0]!r}"
    for layer_id, suffixes in read.items():
        if suffixes is None:
            continue
        if _is_one_of(layer_id, naming.fatal):
            return f"the live WebUI refuses a file that changes {layer_id}"
        if _type_tried(suffixes) is None:
            known = ", ".join(sorted(suffixes)) or "nothing that it knows"
            return f"the live WebUI refuses a file that holds {known} on {layer_id}"
    return None


def _type_tried(suffixes: frozenset[str]) -> NetworkType | None:
    """Return the first type that the WebUI finds among the tensors of a layer; it ignores those of another."""
    return next(
        (
            kind
            for kind in TRIED
            for signature in kind.signatures
            if signature | ALSO_NEEDED.get(kind.id, set()) <= suffixes
        ),
        None,
    )


def _own_part(
    part: LayerNetwork, keys: Mapping[str, str], suffixes: frozenset[str], layer: Layer
) -> LayerNetwork:
    """Return the network of those tensors that the WebUI reads; an alpha that only metadata tell is not one of them."""
    kind = _type_tried(suffixes)
    assert kind is not None  # the file was not refused
    of_type = kind.optional.union(*kind.signatures) | {MAGNITUDE, SCALE}
    dropped = keys.keys() - (suffixes & of_type)
    if not suffixes & {ALPHA, SCALE}:
        dropped |= {ALPHA}
    if layer.weight.part.of > 1:
        dropped |= {BIAS}
    tensors = {suffix: tensor for suffix, tensor in part.tensors.items() if suffix not in dropped}
    return LayerNetwork(type_for(shapes_of(tensors), layer.shape)[0] or part.type, tensors)


def misfit(part: LayerNetwork, layer: Shape) -> str | None:
    """Return why the WebUI skips a network that fits a layer of this shape, `None` when it does not."""
    tensors = part.tensors
    if len(layer) == 4 and layer[1] == INPAINTING_CHANNELS and part.type.id not in NARROW:
        return f"the live WebUI adds five columns to a delta on {INPAINTING_CHANNELS} channels"
    if part.type.id == IA3.id:
        factors, on_input = tensors[FACTORS], bool(tensors[ON_INPUT])
        side = tuple(factors.shape) if on_input else (factors.numel(), 1)
        if not _spreads(side, layer) or (len(layer) == 4 and not on_input):
            return "the live WebUI's IA3 does not fit this layer"
    if part.type.id == GLORA.id:
        sizes = shapes_of(_older(tensors))
        if any(len(size) != 2 for size in (layer, *sizes.values())) or is_old(sizes, layer):
            return "the live WebUI knows GLoRA as it was before LyCORIS 2.2 alone, and on linear layers"
    if MAGNITUDE in tensors and not _spreads(tuple(tensors[MAGNITUDE].shape), layer):
        return "the live WebUI's DoRA does not fit this layer"
    return None


def _spreads(factors: Shape, layer: Shape) -> bool:
    """Tell whether a weight keeps its shape when it is multiplied by factors of this one."""
    try:
        return torch.broadcast_shapes(factors, layer) == layer
    except RuntimeError:
        return False


def translated(part: LayerNetwork) -> LayerNetwork:
    """Return the network whose delta, by its own type's formula or by DoRA's per column, is the WebUI's."""
    kind, tensors = part.type, dict(part.tensors)
    if kind.id == GLORA.id:
        tensors = _older(tensors)
    if CONSTRAINT in tensors:
        tensors[ALPHA] = tensors.pop(CONSTRAINT)
    if MAGNITUDE in tensors:
        kind = replace(kind, delta=_per_column(kind))
    return LayerNetwork(kind, tensors)


def _older(tensors: Tensors) -> dict[str, Tensor]:
    """Return the factors of a GLoRA under each other's names, without an alpha."""
    return {new: tensors[old] for new, old in ((A1, A2), (A2, A1), (B1, B2), (B2, B1))}


def _per_column(kind: NetworkType) -> Callable[[Tensors, Tensor, LayerShape], Delta]:
    """Return the delta of a DoRA whose magnitudes multiply W + D after its columns were made of norm 1."""

    def delta(tensors: Tensors, base: Tensor, shape: LayerShape) -> Delta:
        ones = base.new_ones(1, shape.weight[1], *(1 for _ in shape.kernel))
        change = kind.delta({**tensors, MAGNITUDE: ones}, base, shape).weight
        assert change is not None  # a DoRA changes the weight
        return Delta((base + change) * tensors[MAGNITUDE] - base)

    return delta


def _incomplete(loaded: Set[str], layers: Mapping[str, Layer]) -> dict[str, str]:
    """Return the loaded layers that are one attention with others that are not, with the reason."""
    attentions: dict[str, set[str]] = {}
    for layer in layers.values():
        if layer.weight.part.of > 1:
            output = f"{layer.id.rpartition('.')[0]}.out_proj"  # OpenCLIP's, not SD3's
            members = attentions.setdefault(layer.weight.key, {output} & layers.keys())
            members.add(layer.id)
    return {
        layer_id: f"the live WebUI changes an attention as a whole, and {min(lacking)} is left out"
        for members in attentions.values()
        if (lacking := members - loaded)
        for layer_id in sorted(members & loaded)
    }
