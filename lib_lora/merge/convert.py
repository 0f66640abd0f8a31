"""Writing a network in another dialect: the same tensors under other names, joined or cut where a dialect's layers are others.

Names and joined layers need the table of layers of the base. It comes from the base, or from the network alone where its names and
the width of the text it reads belong to one family; the layers that lie otherwise in models of another depth need the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lib_lora.errors import UsageError
from lib_lora.families.detect import NETWORK_FAMILIES, network_families
from lib_lora.families.table import Family
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.dialects import PEFT_WRAPPER, layers_of
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import NetworkFile, Unmatched, read_network, write_network
from lib_lora.formats.peft_folder import pieces_of
from lib_lora.merge.bake import is_among

DIALECTS = ("kohya", "diffusers", "peft", "comfy", "onetrainer")
DIFFUSERS_NAMES = ("diffusers", "peft", "onetrainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    """What was written; `unmatched` names the tensors that are not in it."""

    file: Path
    family: Family
    dialect: str
    layers: int
    unmatched: tuple[Unmatched, ...]


def convert(source: Path, dialect: str, out: Path, base: Path | None = None) -> ConvertReport:
    """Write a network file or PEFT folder in another dialect, its metadata kept and its hashes computed anew.

    Raises UsageError when the output is an input or no possible file, when the base is needed and not given, and when the dialect
    cannot hold the network; then nothing is written.
    """
    check_output(source, dialect, out, base)
    if base is not None:
        checkpoint = open_checkpoint(base)
        family, layers = checkpoint.family, checkpoint.layers
    else:
        family = _only_family(source)
        layers = layers_of(family)
    network = read_network(source, layers, family.components)
    if base is None:
        _check_depth(network, family, dialect)
    write_network(
        out,
        {layer_id: layer.tensors for layer_id, layer in network.layers.items()},
        layers,
        family.components,
        dialect,
        network.metadata,
    )
    return ConvertReport(
        file=out,
        family=family,
        dialect=network.dialect,
        layers=len(network.layers),
        unmatched=network.unmatched,
    )


def check_output(source: Path, dialect: str, out: Path, base: Path | None) -> None:
    """Refuse an output that is an input, that lies in a folder that is none, or that has not the ending of its kind."""
    if out.suffix != ".safetensors" and dialect != "peft":
        raise UsageError(f"The output must be a .safetensors file, not {out.name!r}.")
    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {str(out.parent)!r} for the output.")
    if out.is_symlink() or out.is_dir():
        raise UsageError(f"{str(out)!r} is a link or a folder; the output must be a new name.")
    if is_among(out, [source, *([base] if base else [])]):
        raise UsageError(f"{str(out)!r} is an input of this conversion and is not overwritten.")


def _only_family(source: Path) -> Family:
    """Return the family that the names and widths of a network belong to; raises UsageError when it could be of several."""
    every = {
        component.diffusers: component
        for family in NETWORK_FAMILIES
        for component in family.components
    }
    shapes = {}
    for piece in pieces_of(source, tuple(every.values())):
        prefix = f"{piece.file.parent.name}." if piece.component is not None else ""
        for key, shape in read_header(piece.file).shapes.items():
            shapes[prefix + key.replace(PEFT_WRAPPER, "", 1)] = shape
    families = network_families(shapes)
    if len(families) != 1:
        labels = " and ".join(family.label for family in families) or "no known family"
        raise UsageError(
            f"The names in {source.name} fit {labels}; name a checkpoint it is made for with --base."
        )
    return families[0]


def _check_depth(network: NetworkFile, family: Family, dialect: str) -> None:
    """Refuse layers that the original checkpoint holds otherwise in a model of another depth, unless no name is the original's."""
    if network.dialect in DIFFUSERS_NAMES and dialect in DIFFUSERS_NAMES:
        return
    for component in family.components:
        for row in component.rows:
            layer_id = f"{component.name}.{row.path}"
            if row.lacking is not None and layer_id in network.layers:
                raise UsageError(
                    f"How {layer_id} lies in a checkpoint depends on the depth of the model;"
                    " name a checkpoint it is made for with --base."
                )
