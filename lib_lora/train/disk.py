"""The files of one training: states, saves, samples and the finished network, and the room on the disk that they need."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from lib_lora.errors import LoraError, NoSpaceError
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.formats.place import check_space, check_takes_files, remove_partial
from lib_lora.formats.stream import is_finite
from lib_lora.networks.dora import MAGNITUDE
from lib_lora.train.attach import Attached
from lib_lora.train.companions import companion_names, write_companions
from lib_lora.train.config import TrainConfig
from lib_lora.train.loop import Loop, Watcher
from lib_lora.train.precision import DTYPES
from lib_lora.train.preview import Preview
from lib_lora.train.state import State, kept_step, write_state


class Disk:
    """The files of one training; the loop's `Keeper`."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        checkpoint: Checkpoint,
        attached: Attached,
        loop: Loop,
        metadata: Callable[[int], dict[str, str]],
        made_of: Mapping[str, str],
        preview: Preview | None = None,
    ) -> None:
        self._config, self._folder, self._checkpoint = config, folder, checkpoint
        self._attached, self._loop, self._metadata = attached, loop, metadata
        self._made_of, self._preview = made_of, preview

    def prepare(self, watcher: Watcher) -> None:
        """Make the folders, without what a killed writer left; raises LoraError when they cannot hold what will be written."""
        saves, out = self._folder / "saves", self._config.saving.out.parent
        for folder in (saves, self._folder / "state", out):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (saves, self._folder / "state", self._folder / "samples"):
            remove_partial(folder)
        remove_partial(out, *companion_names(self._config.saving.out))
        check_takes_files(out)
        network = self._network_bytes()
        # A new state is whole before the old one goes, which a resumed run has already.
        states = 1 if self._loop.done else 2
        needed = states * self._state_bytes() + self._saves_left() * network
        if out.stat().st_dev == self._folder.stat().st_dev:
            needed += network
        watcher.disk(needed, shutil.disk_usage(self._folder).free)
        check_space(self._folder, needed)
        check_space(out, network)
        # The state comes before the samples, so a worker that was killed between the two still owes them.
        done, every = self._loop.done, self._config.samples.every
        if done and every and done % every == 0:
            self.sample(done, watcher)

    def retreat(self) -> int:
        """Write the state if that is still possible, and return the step that a resumed run goes on from."""
        with contextlib.suppress(NoSpaceError, OSError):
            self.state(self._loop.done)
        return kept_step(self._folder / "state")

    def state(self, step: int) -> None:
        """Write the state after `step` steps; the loop's `Keeper`."""
        check_space(self._folder, self._state_bytes())
        tensors = self._loop.optimizer.state()
        # A loss tells it one step later, when this state would have taken the place of a good one.
        _check_numbers(tensors.values(), step)
        state = State(step, tensors, self._loop.validations, self._made_of)
        write_state(self._folder / "state", state)

    def network(self, step: int) -> str:
        """Write the network into the run's saves and return the file; the loop's `Keeper`."""
        file = self._folder / "saves" / f"{self._config.saving.out.stem}-{step:06d}.safetensors"
        self.write(file, step)
        return str(file)

    def sample(self, step: int, watcher: Watcher) -> None:
        """Draw the samples after `step` steps, with a state written first; the loop's `Keeper`."""
        if self._preview is None:
            return
        if kept_step(self._folder / "state") != step:
            self.state(step)
        self._preview.draw(self._folder / "samples", step, watcher)
        watcher.stage("training", step, self._config.schedule.steps)

    def finish(self, watcher: Watcher) -> None:
        """Write the finished network, and then what is to lie beside it."""
        saving, step = self._config.saving, self._loop.done
        watcher.stage("saving")
        self.write(saving.out, step)
        watcher.saved(str(saving.out), step)
        samples = []
        if self._preview is not None:
            samples = self._preview.draw(self._folder / "samples", step, watcher)
        sample = samples[0] if samples and saving.preview else None
        try:
            write_companions(saving.out, sample, saving.activation or self._config.data.caption)
        except (OSError, LoraError) as error:
            watcher.note(f"The LoRA is saved, but what lies beside it is not: {error}")

    def write(self, file: Path, step: int) -> None:
        """Write the network as it is; raises LoraError when the precision of the file cannot hold it, NoSpaceError when the disk
        cannot."""
        check_space(file.parent, self._network_bytes())
        dtype = DTYPES[self._config.saving.dtype]
        _check_numbers(
            (t for parts in self._attached.tensors.values() for t in parts.values()), step
        )
        # A rounded magnitude would move the base's own weights, and it is one number for a whole row.
        rounded = self._attached.type.trainable - {MAGNITUDE}
        tensors = {
            id_: {s: t.detach().to(dtype) if s in rounded else t.detach() for s, t in parts.items()}
            for id_, parts in self._attached.tensors.items()
        }
        for id_, parts in tensors.items():
            if not all(bool(tensor.isfinite().all()) for tensor in parts.values()):
                raise LoraError(
                    f"{id_} has values that {self._config.saving.dtype} cannot hold; save in fp32."
                )
        family = self._checkpoint.family
        dialect, layers = self._config.saving.dialect, self._checkpoint.layers
        write_network(file, tensors, layers, family.components, dialect, self._metadata(step))

    def _state_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._loop.optimizer.state().values())

    def _network_bytes(self) -> int:
        itemsize = DTYPES[self._config.saving.dtype].itemsize
        return itemsize * sum(
            t.numel() for parts in self._attached.tensors.values() for t in parts.values()
        )

    def _saves_left(self) -> int:
        every, steps = self._config.saving.every, self._config.schedule.steps
        return (steps - 1) // every - self._loop.done // every if every else 0


def _check_numbers(tensors: Iterable[Tensor], step: int) -> None:
    if not all(is_finite(tensor.detach().flatten()) for tensor in tensors):
        raise LoraError(
            f"The network has become no numbers at step {step}: lower the rates, or compute in fp32. "
            "What was saved before is still there."
        )
