"""Which family a checkpoint or a network belongs to, told from names and shapes.

Metadata only warn, and tell what a denoiser predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from lib_lora.errors import FileFormatError
from lib_lora.families.clues import ALL, CLUES, CONTEXT_WIDTHS, CROSS_ATTENTION, NETWORK_MARKS, Ids
from lib_lora.families.foreign import CHECKPOINT_PIECES, CONDITIONED, NETWORK_PIECES
from lib_lora.families.sd1 import SD1, SD1_INPAINTING, SD1_UNWRAPPED, UNET
from lib_lora.families.sd2 import SD2, SD2_EPSILON
from lib_lora.families.sd3 import SD3, SD35_LARGE, SD35_MEDIUM
from lib_lora.families.sdxl import SDXL, SDXL_REFINER
from lib_lora.families.table import Component, Family, ObjectiveName, Shapes

FAMILIES: tuple[Family, ...] = (
    *(SD1, SD1_INPAINTING, SD1_UNWRAPPED),
    *(SD2, SD2_EPSILON, SDXL, SDXL_REFINER),
    *(SD3, SD35_MEDIUM, SD35_LARGE),
)
NETWORK_FAMILIES: tuple[Family, ...] = (SD1, SD2, SDXL, SDXL_REFINER, SD3)
"""One family for every id: variants share their components, and so their networks."""

Metadata = Mapping[str, str]
VERSION, ARCHITECTURE = "ss_base_model_version", "modelspec.architecture"

# A tensor without elements by which a checkpoint says that it predicts v, as ComfyUI and Forge read it.
V_MARKER = "v_pred"
# Likewise, that its noise schedule ends in noise alone.
ZERO_TERMINAL_MARKER = "ztsnr"
PREDICTION_KEYS = ("modelspec.prediction_type", "modelspec.predict_key")
PREDICTIONS: dict[str, ObjectiveName] = {
    "v": "v",
    "v_prediction": "v",
    "epsilon": "epsilon",
    "eps": "epsilon",
}
"""Values of `PREDICTION_KEYS`."""
PREDICTION_ENDINGS: tuple[tuple[str, str, ObjectiveName], ...] = (
    (ARCHITECTURE, "-v2-768-v", "v"),
    (ARCHITECTURE, "-v2-512", "epsilon"),
    (VERSION, "sd_v2_v", "v"),
)


def detect_family(shapes: Shapes, metadata: Metadata | None = None) -> Family:
    """Return the family of a checkpoint; raises FileFormatError that says what it seems to be when it is not supported.

    metadata: the file's, which tell where the keys do not whether the denoiser predicts v.
    """
    fitting = [family for family in FAMILIES if family.signature.fits(shapes)]
    if not fitting:
        raise FileFormatError(f"This is {_describe(shapes)}: not supported yet. {_accepted()}")
    objective = told_objective(shapes, metadata or {})
    return fitting[0] if objective is None else with_objective(fitting[0], objective)


def with_objective(family: Family, objective: ObjectiveName) -> Family:
    """Return the variant of a family that predicts this: the known one, or the same family but for that; a flow has no variants."""
    if family.objective == "flow":
        return family
    known = (
        each
        for each in FAMILIES
        if (each.id, each.signature, each.objective) == (family.id, family.signature, objective)
    )
    return next(known, replace(family, objective=objective))


def is_ambiguous(family: Family) -> bool:
    """Tell whether released models of this structure differ in what they predict."""
    return len({each.objective for each in FAMILIES if each.signature == family.signature}) > 1


def told_objective(shapes: Shapes, metadata: Metadata) -> ObjectiveName | None:
    """Return what a checkpoint says that its denoiser predicts, "v" or "epsilon"; `None` when it does not say.

    A marker key comes first, then ModelSpec's prediction type, then the names of architectures and versions that imply one.
    """
    if V_MARKER in shapes:
        return "v"
    for key in PREDICTION_KEYS:
        if metadata.get(key) in PREDICTIONS:
            return PREDICTIONS[metadata[key]]
    for key, ending, objective in PREDICTION_ENDINGS:
        if metadata.get(key, "").partition("/")[0].endswith(ending):
            return objective
    return None


def disagreement(family: Family, metadata: Metadata) -> str | None:
    """Return a sentence when the metadata of a checkpoint or a network name another family than its structure shows."""
    for key in (VERSION, ARCHITECTURE):
        told = metadata.get(key)
        if told and not told.startswith(family.known_as):
            return f"Its metadata say that its {key} is {told!r}, its layers fit {family.label}."
    return None


def guess_network_family(shapes: Shapes, base: Sequence[Component] | None = None) -> str | None:
    """Return the name of the family that a network file is made for, `None` when it may fit or is no network.

    base: the components of the base's family; without a base only families that are not supported are named.
    """
    if not any(mark in key for key in shapes for mark in NETWORK_MARKS):
        return None
    text = _names(shapes)
    for piece, label in NETWORK_PIECES:
        if piece in text:
            return label
    possible = network_families(shapes)
    if base is None or any(family.components == tuple(base) for family in possible):
        return None
    return " or ".join(family.label for family in possible)


def network_families(shapes: Shapes) -> tuple[Family, ...]:
    """Return the supported families that a network file may be made for, one of each id; all when nothing tells."""
    text = _names(shapes)
    told = (ids for piece, ids in CLUES if piece in text)
    left = reduce(_narrowed, (*told, _ids_by_width(shapes)), ALL)
    return tuple(family for family in NETWORK_FAMILIES if family.id in left)


def _narrowed(left: Ids, ids: Ids) -> Ids:
    return left & ids or left


def _names(keys: Iterable[str]) -> str:
    return "\n".join(keys).replace(".", "_")


def _ids_by_width(shapes: Shapes) -> Ids:
    for key, shape in shapes.items():
        if len(shape) > 1 and key.replace(".", "_").endswith(CROSS_ATTENTION):
            return CONTEXT_WIDTHS.get(shape[1], ALL)
    return ALL


def _accepted() -> str:
    labels = dict.fromkeys(family.label for family in FAMILIES)
    return f"Accepted: {', '.join(labels)}."


def _describe(shapes: Shapes) -> str:
    conv_in = shapes.get(f"{UNET}input_blocks.0.0.weight", ())
    if len(conv_in) == 4 and conv_in[1] in CONDITIONED:
        return CONDITIONED[conv_in[1]]
    for piece, kind in CHECKPOINT_PIECES:
        if any(piece in key for key in shapes):
            return kind
    return "no checkpoint of a known family"
