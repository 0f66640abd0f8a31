"""What a training leaves on disk to resume from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from lib_lora.formats.place import remove
from lib_lora.formats.stream import TensorReader, write_tensors

OF = "made of "


@dataclass(frozen=True, slots=True)
class State:
    """A training after `step` steps: the optimizer's tensors, the validation losses so far by step, and what it was made of.

    made_of: a hash of each of what a person may have changed since, by what it is called.
    """

    step: int
    tensors: Mapping[str, Tensor]
    validations: Mapping[int, float]
    made_of: Mapping[str, str] = field(default_factory=dict)


def write_state(folder: Path, state: State) -> None:
    """Write a state under its own name, whole or not at all, then remove the older ones."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{state.step:07d}.safetensors"
    losses = {f"validation {step}": repr(loss) for step, loss in state.validations.items()}
    made_of = {f"{OF}{name}": digest for name, digest in state.made_of.items()}
    write_tensors(file, state.tensors, {"step": str(state.step), **losses, **made_of})
    for other in _files(folder):
        if other.name < file.name:
            remove(other)


def read_state(folder: Path) -> State | None:
    """Read the newest state, `None` when there is none."""
    files = _files(folder)
    if not files:
        return None
    with TensorReader(files[-1]) as reader:
        told = reader.header.metadata
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    validations = {
        int(key.split()[1]): float(loss)
        for key, loss in told.items()
        if key.startswith("validation ")
    }
    made_of = {key[len(OF) :]: digest for key, digest in told.items() if key.startswith(OF)}
    return State(int(told["step"]), tensors, validations, made_of)


def kept_step(folder: Path) -> int:
    """Return the step of the newest state, 0 when there is none."""
    return int(_files(folder)[-1].stem) if _files(folder) else 0


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
