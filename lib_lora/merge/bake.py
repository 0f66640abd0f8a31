"""Baking networks into a base model: W' = W + sum of strength * delta, summed in float64 and rounded once, in either mode.

The base streams through one tensor at a time; what no network touches is copied byte for byte. The finished file appears at once
under its name, or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lib_lora.errors import LoraError, UsageError
from lib_lora.families.table import Layer
from lib_lora.formats.file_name import fits_every_system
from lib_lora.formats.hashes import file_sha256
from lib_lora.formats.original import layer_view, swapped
from lib_lora.formats.stream import TensorReader, TensorWriter, is_finite
from lib_lora.merge.live import compose_in_turn
from lib_lora.merge.plan import MergePlan
from lib_lora.merge.recipe import merged_metadata
from lib_lora.networks.compose import compose

VANISHING_SHARE = 0.5
LAWS = {"exact": compose, "live": compose_in_turn}  # by the mode of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """A finished merge: the file, its size and sha256, how many tensors differ from the base's, and sentences."""

    file: Path
    output_bytes: int
    sha256: str
    tensors_touched: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Rounding:
    """How many elements the networks move, and how many of them the output's dtype rounds back to the base's value."""

    moved: int = 0
    lost: int = 0


def bake(plan: MergePlan, out: Path) -> MergeReport:
    """Carry out a merge; equal inputs give equal bytes.

    Raises UsageError for an output that cannot be, and LoraError when the disk is too full or a merged tensor overflows. Whatever
    happens, no input is written to and no unfinished file stays.
    """
    check_output(plan, out)
    rounding = Rounding()
    entries = {
        key: (plan.dtypes[key], entry.shape) for key, entry in plan.base.header.tensors.items()
    }
    metadata = merged_metadata(plan, title=out.stem)
    with TensorReader(plan.base.path) as reader, TensorWriter(out, entries, metadata) as writer:
        for key in entries:
            if key in plan.changes:
                writer.write(key, _merged(plan, reader, key, rounding))
            else:
                writer.write(key, _copied(reader, key, plan.dtypes[key]))
    return MergeReport(
        file=out,
        output_bytes=out.stat().st_size,
        sha256=file_sha256(out),
        tensors_touched=len(plan.changes),
        warnings=(*plan.warnings, *_rounding_warnings(rounding)),
    )


def check_output(plan: MergePlan, out: Path) -> None:
    """Refuse an output that is an input, has a name that some system cannot hold, or does not fit on the disk."""
    if out.suffix != ".safetensors":
        raise UsageError(f"The output must be a .safetensors file, not {out.name!r}.")
    if not fits_every_system(out.name):
        raise UsageError(f"{out.name!r} is a name that some system cannot hold; choose another.")
    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {str(out.parent)!r} for the output.")
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise UsageError(f"{str(out)!r} is a link or a folder; the output must be a new name.")
    if is_among(out, (plan.base.path, *(choice.file for choice in plan.choices))):
        raise UsageError(f"{str(out)!r} is an input of this merge and is not overwritten.")
    free = shutil.disk_usage(out.parent).free
    if free < plan.output_bytes:
        raise LoraError(
            f"The output needs {plan.output_bytes:,} bytes, {str(out.parent)!r} has {free:,} left."
        )


def is_among(out: Path, inputs: Sequence[Path]) -> bool:
    """Tell whether an output is one of the inputs by whatever name, or a file in a folder that is one."""
    if not out.exists():
        return False
    folders = (path for path in inputs if path.is_dir())
    files = [*inputs, *(file for folder in folders for file in folder.rglob("*"))]
    return any(file.exists() and out.samefile(file) for file in files)


def _copied(reader: TensorReader, key: str, dtype: torch.dtype) -> Tensor:
    """Return a tensor that no network changes in the output's dtype; raises LoraError when that cannot hold it."""
    stored = reader.read_to_copy(key)
    cast = stored.to(dtype)
    if dtype != stored.dtype and not is_finite(cast.view(-1)) and is_finite(stored.view(-1)):
        raise LoraError(
            f"{key} of the base is larger than {_name(dtype)} can hold. Choose --dtype fp32."
        )
    return cast


def _merged(plan: MergePlan, reader: TensorReader, key: str, rounding: Rounding) -> Tensor:
    stored, dtype, law = reader.read(key), plan.dtypes[key], LAWS[plan.mode]
    exact = stored.double()
    for change in plan.changes[key]:
        part = change.place.part
        view = layer_view(exact, part)
        if change.tensor == "weight":
            delta = law(swapped(view, part), change.uses).weight
        else:  # the law asks for the layer's weight here too
            delta = law(_weight(reader, change.layer), change.uses).bias
        if delta is not None:
            view += swapped(delta, part)
    result = exact.to(dtype)
    if not result.float().isfinite().all():
        raise LoraError(
            f"{plan.changes[key][0].layer.id} becomes larger than {_name(dtype)} can hold, or no number at all."
            " Lower the strength, or choose --dtype fp32."
        )
    moved = exact != stored.double()
    rounding.moved += int(moved.sum())
    rounding.lost += int((moved & (result.double() == stored.to(dtype).double())).sum())
    return result


def _weight(reader: TensorReader, layer: Layer) -> Tensor:
    key, part = layer.weight.key, layer.weight.part
    return swapped(layer_view(reader.read(key).double(), part), part)


def _rounding_warnings(rounding: Rounding) -> list[str]:
    if rounding.lost <= VANISHING_SHARE * rounding.moved:
        return []
    share = rounding.lost / rounding.moved
    return [
        f"{share:.0%} of the changed elements are rounded back to the base's value: the merge is too weak for this dtype."
        " fp16 keeps more than bf16, fp32 keeps all."
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
