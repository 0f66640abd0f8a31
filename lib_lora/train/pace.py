"""Why the steps of a training are slow, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from lib_lora.train.config import TrainConfig

WARM_UP_STEPS = 3
MUCH_DRAWING = 0.2


def slow_because(config: TrainConfig, on_cpu: bool, drawing: float) -> str:
    """Return what makes the steps slow, empty when nothing does.

    drawing: the share of the time in which noise and pictures are chosen, on the CPU.
    """
    reasons = "; ".join(_reasons(config, on_cpu, drawing))
    return f"Slow because: {reasons}." if reasons else ""


def _reasons(config: TrainConfig, on_cpu: bool, drawing: float) -> Iterator[str]:
    if on_cpu:
        yield "it is computed on a CPU"
    if config.schedule.accumulate > 1:
        yield f"each step has {config.schedule.accumulate} forward passes"
    if config.run.checkpointing:
        yield "gradient checkpointing computes each block twice"
    if config.run.storage == "fp8":
        yield "weights of 8 bits are brought back layer by layer"
    if drawing > MUCH_DRAWING:
        yield f"{drawing:.0%} of the time goes into drawing the noise"
