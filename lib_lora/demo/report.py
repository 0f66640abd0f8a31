"""What a run of the demo measured, and which of the promised figures it missed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from PIL import Image

LEAST_LOSS_FALL = 0.05
LEAST_HITS_WITH, MOST_HITS_WITHOUT = 0.8, 0.1
MOST_MEAN_DIFFERENCE = 2.0


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """The loss on fixed held-out noise and timesteps, before the first step and after the last."""

    first: float
    last: float

    @property
    def fall(self) -> float:
        """Return by which share the loss fell."""
        return 1 - self.last / self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Concept:
    """The concept as measured in pictures of the same prompts and seeds without and with the LoRA.

    measure: what the values are, one per picture; threshold: at or above it a picture is a hit.
    """

    measure: str
    threshold: float
    prompts: Sequence[str]
    seeds: Sequence[int]
    without: Sequence[float]
    having: Sequence[float]

    def found(self, values: Sequence[float]) -> list[bool]:
        """Tell for each value whether it is a hit."""
        return [value >= self.threshold for value in values]

    @property
    def hits(self) -> tuple[int, int]:
        """Return the number of hits without and with the LoRA."""
        return sum(self.found(self.without)), sum(self.found(self.having))


@dataclass(frozen=True, slots=True)
class Likeness:
    """The mean distance of a fixed descriptor to the nearest training picture, without and with the LoRA."""

    without: float
    having: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The absolute difference between two sets of pictures, in steps of 0 to 255."""

    mean: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one run measured. concept is of the bundled pictures, likeness of a person's own; the other is `None`."""

    data: str
    seed: int
    seconds: Mapping[str, float]
    peak_memory_bytes: int
    validation_loss: Mapping[str, ValidationLoss]
    concept: Concept | None
    likeness: Likeness | None
    merged_versus_live: Difference
    sha256: Mapping[str, str]
    notes: Sequence[str] = ()

    def to_json(self) -> str:
        """Write the report, hits and falls included."""
        told = asdict(self)
        for name, loss in self.validation_loss.items():
            told["validation_loss"][name]["fall"] = loss.fall
        if self.concept:
            without, having = self.concept.hits
            told["concept"] |= {"hits_without": without, "hits_having": having}
        told["shortfalls"] = shortfalls(self)
        return json.dumps(told, indent=2) + "\n"


def difference(some: Sequence[Image.Image], others: Sequence[Image.Image]) -> Difference:
    """Compare pictures of one size pixel by pixel and channel by channel."""
    pairs = zip(some, others, strict=True)
    steps = np.stack([np.abs(np.asarray(a, dtype=int) - np.asarray(b)) for a, b in pairs])
    return Difference(float(steps.mean()), int(steps.max()))


def told_figures(report: Report) -> list[str]:
    """Word the figures in short sentences for a person."""
    told = [
        f"Validation loss of {name}: {loss.first:.3f} before, {loss.last:.3f} after ({-loss.fall:+.0%})"
        for name, loss in report.validation_loss.items()
    ]
    if report.concept:
        without, having = report.concept.hits
        count = len(report.concept.prompts)
        told.append(
            f"Concept found in {having} of {count} pictures with the LoRA, {without} without"
        )
    if report.likeness:
        near, far = report.likeness.having, report.likeness.without
        told.append(
            f"Distance to the training pictures: {near:.3f} with the LoRA, {far:.3f} without"
        )
    measured = report.merged_versus_live
    told.append(
        f"Merged and live differ by {measured.mean:.2f} of 255 on average, {measured.max} at most"
    )
    training = sum(seconds for name, seconds in report.seconds.items() if name.startswith("train "))
    told.append(f"{training:.0f} s of training on the CPU")
    told.append(f"{report.peak_memory_bytes / 1e9:.2f} GB of memory at the peak")
    return told


def shortfalls(report: Report) -> list[str]:
    """Name every figure that falls short of what the demo promises; empty when all hold."""
    return [
        *_loss_shortfalls(report.validation_loss),
        *(_concept_shortfalls(report.concept) if report.concept else []),
        *(_likeness_shortfalls(report.likeness) if report.likeness else []),
        *_merge_shortfalls(report.merged_versus_live),
    ]


def _loss_shortfalls(losses: Mapping[str, ValidationLoss]) -> list[str]:
    return [
        f"The validation loss of {name} fell by {loss.fall:.1%}, from {loss.first:.4f} to {loss.last:.4f};"
        f" at least {LEAST_LOSS_FALL:.0%} was expected."
        for name, loss in losses.items()
        if not loss.fall >= LEAST_LOSS_FALL
    ]


def _concept_shortfalls(concept: Concept) -> list[str]:
    without, having = concept.hits
    count = len(concept.prompts)
    sentences = []
    if not having >= LEAST_HITS_WITH * count:
        sentences.append(
            f"The detector fires on {having} of {count} pictures with the LoRA;"
            f" at least {LEAST_HITS_WITH:.0%} was expected."
        )
    if not without <= MOST_HITS_WITHOUT * count:
        sentences.append(
            f"The detector fires on {without} of {count} pictures of the base;"
            f" at most {MOST_HITS_WITHOUT:.0%} was expected."
        )
    return sentences


def _likeness_shortfalls(likeness: Likeness) -> list[str]:
    if likeness.having < likeness.without:
        return []
    return [
        f"Pictures with the LoRA are {likeness.having:.3f} from the training pictures, those of the base {likeness.without:.3f};"
        " they were expected to be nearer."
    ]


def _merge_shortfalls(measured: Difference) -> list[str]:
    if measured.mean <= MOST_MEAN_DIFFERENCE:
        return []
    return [
        f"Merged and live pictures differ by {measured.mean:.2f} of 255 on average;"
        f" at most {MOST_MEAN_DIFFERENCE:g} was expected."
    ]
