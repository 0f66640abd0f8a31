"""What a training leaves behind: the LoRA file, its preview, the states to resume from and the samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lib_lora.train.fields import about


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingConfig:
    """What is written, where and when."""

    out: Path = field(metadata=about("Output", "The LoRA file to write at the end, .safetensors."))
    dtype: str = field(
        default="fp16",
        metadata=about(
            "Precision", "Precision of the saved tensors.", choices=("fp32", "fp16", "bf16")
        ),
    )
    dialect: str = field(
        default="auto",
        metadata=about(
            "Key names",
            "How layers are named in the file; auto is what the WebUI reads: diffusers' names for SD3, kohya's for the rest.",
            choices=("auto", "kohya", "diffusers"),
        ),
    )
    every: int = field(
        default=0,
        metadata=about(
            "Save every",
            "Steps between LoRA files in the run's saves folder; 0 is off.",
            (0, 1_000_000),
        ),
    )
    state_every: int = field(
        default=100,
        metadata=about(
            "State every",
            "Steps between the states that a stopped run resumes from.",
            (1, 1_000_000),
        ),
    )
    preview: bool = field(
        default=True,
        metadata=about(
            "Preview picture",
            "Put the sample of the first prompt beside the file, where the WebUI looks for its preview, unless there is one.",
        ),
    )
    activation: str = field(
        default="",
        metadata=about(
            "Activation text",
            "The words that the WebUI puts into a prompt with the LoRA. Left empty: the caption of pictures without one.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesConfig:
    """Pictures made with the network while it is in training."""

    prompts: str = field(
        default="",
        metadata=about("Sample prompts", "One prompt a line, a picture of each; empty is off."),
    )
    negative: str = field(
        default="", metadata=about("Negative prompt", "What the samples are moved away from.")
    )
    every: int = field(
        default=0,
        metadata=about("Sample every", "Steps between samples; 0 only at the end.", (0, 1_000_000)),
    )
    steps: int = field(
        default=20, metadata=about("Sampling steps", "Steps for each sample.", (1, 150))
    )
    guidance: float = field(
        default=7.0,
        metadata=about("Guidance", "How far a sample is moved towards its prompt.", (0.0, 30.0)),
    )
    seed: int = field(
        default=0,
        metadata=about(
            "Sample seed",
            "Of the first prompt; each further one has the next. The same all the time.",
            (0, 2**32 - 1),
        ),
    )
    size: int = field(
        default=0,
        metadata=about(
            "Sample size", "Side in pixels; divisible by 8. 0 is that of the training.", (0, 2048)
        ),
    )

    @property
    def texts(self) -> list[str]:
        """Return the negative text and then the prompts; only that when there are no samples."""
        return [self.negative, *filter(None, map(str.strip, self.prompts.splitlines()))]
