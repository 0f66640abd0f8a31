"""The forecast of memory as the page shows it: each phase against what is free, and what was chosen for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.host import Host, HostFlags
from lib_lora.train.config import TrainConfig
from lib_lora.train.memory import GB, Machine, MemoryPlan, machine_here, plan
from lib_lora.train.memory_choices import choose
from lib_lora.train.memory_parts import ModelFacts, facts_of

PHASES = {"pictures": "Pictures", "captions": "Captions", "training": "Training"}
PLACES = {"cpu": "this computer's memory", "cuda": "the GPU's memory"}


class Forecaster:
    """Plans trainings on the machine of a host; the facts of the base model that was asked for last are kept."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: tuple[tuple[Path, int], ModelFacts] | None = None

    def fitted(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with what this machine decides; raises LoraError for a checkpoint that cannot be read."""
        return choose(config, self._facts(config.model.base), self._machine())[0]

    def view(self, config: TrainConfig, fit: bool) -> dict[str, Any]:
        """Return the forecast, after `fitted` when `fit`. Raises LoraError for a checkpoint that cannot be read."""
        facts, machine = self._facts(config.model.base), self._machine()
        planned = choose(config, facts, machine)[1] if fit else plan(config, facts, machine)
        return {
            "family": facts.family.id,
            "free": planned.free_bytes,
            "fits": planned.fits,
            "verdict": _verdict(planned),
            "phases": [
                {"label": PHASES.get(phase.name, phase.name.capitalize()), "bytes": phase.bytes}
                for phase in planned.phases
            ],
            "note": _note(planned, machine),
            "choices": [choice.sentence for choice in planned.choices],
            "chosen": {choice.setting: str(choice.value).lower() for choice in planned.choices},
        }

    def _facts(self, base: Path) -> ModelFacts:
        key = (base, base.stat().st_mtime_ns)
        if self._known is None or self._known[0] != key:
            self._known = key, facts_of(open_checkpoint(base))
        return self._known[1]

    def _machine(self) -> Machine:
        flags = self._host.flags()
        return machine_here(flags, _held(flags))


def _held(flags: HostFlags) -> int:
    """Return the bytes that this process holds on the GPU and gives back before a run starts."""
    if flags.device != "cuda" or not torch.cuda.is_available():
        return 0
    return torch.cuda.memory_reserved()


def _verdict(planned: MemoryPlan) -> str:
    need, free = planned.peak.bytes / GB, planned.free_bytes / GB
    if planned.fits:
        return f"Fits: at most {need:.1f} GB of {free:.1f} GB free."
    name = PHASES.get(planned.peak.name, planned.peak.name).lower()
    return (
        f"May not fit: {name} needs {need:.1f} GB and {free:.1f} GB are free. Lower the size or the batch,"
        " or close other programs."
    )


def _note(planned: MemoryPlan, machine: Machine) -> str:
    place = PLACES.get(machine.flags.device, "memory")
    return f"Peak of each phase; the line is what is free of {place} once a run begins. {planned.label[:1].upper()}{planned.label[1:]}."
