"""What a training run is asked to do: nested frozen records whose fields carry what a form, the CLI and the docs need.

The defaults stand here and nowhere else; a preset or a configuration file is a difference from them.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib_lora.errors import ConfigError, UsageError, did_you_mean
from lib_lora.formats.file_name import fits_every_system
from lib_lora.networks.compose import NETWORK_TYPES, WITH_MAGNITUDES
from lib_lora.train.fields import about, from_text, read_section

TRAINABLE_TYPES = tuple(kind.id for kind in NETWORK_TYPES if kind.create is not None)
DORA_BASES = tuple(kind.id for kind in WITH_MAGNITUDES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The base model."""

    base: Path = field(metadata=about("Base model", "The checkpoint file to train on."))
    config: Path | None = field(
        default=None,
        metadata=about(
            "Model configuration",
            "A diffusers configuration folder. Left empty: the sidecar beside the checkpoint, else the numbers of the family.",
        ),
    )
    vae: Path | None = field(
        default=None,
        metadata=about(
            "VAE", "A VAE file to encode the pictures with. Left empty: that of the checkpoint."
        ),
    )
    prediction: str = field(
        default="auto",
        metadata=about(
            "Prediction",
            "What the model predicts; auto takes what the sidecar or the checkpoint says, else what it seems to do.",
            choices=("auto", "epsilon", "v"),
        ),
    )
    clip_skip: int = field(
        default=1,
        metadata=about(
            "Clip skip",
            "Which layer of the text encoder is read, counted from the last, as in the WebUI; Stable Diffusion 1 alone.",
            (1, 12),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The pictures and their captions."""

    folder: Path = field(
        metadata=about(
            "Pictures",
            "A folder of pictures, with a .txt caption beside each or none. Subfolders named N_name repeat theirs N times.",
        )
    )
    size: int = field(
        default=512,
        metadata=about(
            "Size", "Width and height of a square picture in pixels; divisible by 8.", (64, 2048)
        ),
    )
    bucket_step: int = field(
        default=64,
        metadata=about(
            "Bucket step",
            "Pictures keep their shape as far as sides divisible by this and the area of the square allow; 0 cuts all to squares.",
            (0, 512),
        ),
    )
    upscale: bool = field(
        default=True,
        metadata=about(
            "Enlarge small pictures",
            "Bring pictures with fewer pixels than the square to its area; else they are trained at their own size.",
        ),
    )
    caption: str = field(
        default="", metadata=about("Caption", "The caption of pictures that have no .txt file.")
    )
    caption_dropout: float = field(
        default=0.0,
        metadata=about(
            "Caption dropout", "Share of samples trained with an empty caption.", (0.0, 1.0)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The network that is trained, and where."""

    type: str = field(
        default="lora", metadata=about("Type", "The network type.", choices=TRAINABLE_TYPES)
    )
    rank: int = field(
        default=16,
        metadata=about("Rank", "Rank of the network; more learns more and weighs more.", (1, 1024)),
    )
    alpha: float = field(
        default=16.0,
        metadata=about(
            "Alpha",
            "The network is scaled by alpha / rank, or alpha / sqrt(rank) if rank-stabilized.",
            (0.01, 4096.0),
        ),
    )
    conv_rank: int = field(
        default=0,
        metadata=about(
            "Convolution rank",
            "Rank on 3x3 convolutions, scaled like the rest; the other resnet layers join with the rank above. 0 leaves all out.",
            (0, 1024),
        ),
    )
    dora: bool = field(
        default=False,
        metadata=about(
            "DoRA",
            f"Train the size of every output apart from its direction: {', '.join(DORA_BASES)}.",
        ),
    )
    rank_stabilized: bool = field(
        default=False,
        metadata=about(
            "Rank-stabilized",
            "Divide alpha by the root of the rank, so that a higher rank learns as fast.",
        ),
    )
    tucker: bool = field(
        default=False,
        metadata=about(
            "Tucker",
            "Give the kernel of a 3x3 convolution a core of its own: lora, loha, lokr, glora.",
        ),
    )
    factor: int = field(
        default=-1,
        metadata=about(
            "LoKr factor",
            "Largest size of LoKr's smaller factor, where a larger one makes a smaller file; -1 is the most even split.",
            (-1, 4096),
        ),
    )
    unet: bool = field(
        default=True, metadata=about("Train the UNet", "Put the network on the UNet.")
    )
    text_encoder: bool = field(
        default=False,
        metadata=about("Train the text encoder", "Put the network on the text encoder too."),
    )

    @property
    def conv_alpha(self) -> float:
        """Return the alpha of 3x3 convolutions, which gives them the scale of the rest."""
        ratio = self.conv_rank / self.rank
        return self.alpha * (math.sqrt(ratio) if self.rank_stabilized else ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its rates."""

    type: str = field(
        default="adamw",
        metadata=about(
            "Optimizer",
            "adamw8bit keeps its moments in 8 bits; it needs bitsandbytes and a CUDA device.",
            choices=("adamw", "adamw8bit"),
        ),
    )
    unet_rate: float = field(
        default=1e-4, metadata=about("UNet rate", "Peak learning rate of the UNet.", (0.0, 1.0))
    )
    text_encoder_rate: float = field(
        default=5e-5,
        metadata=about("Text encoder rate", "Peak learning rate of the text encoder.", (0.0, 1.0)),
    )
    weight_decay: float = field(
        default=0.01, metadata=about("Weight decay", "Decoupled weight decay.", (0.0, 1.0))
    )
    beta1: float = field(
        default=0.9, metadata=about("Beta 1", "Decay of the mean of gradients.", (0.0, 0.9999))
    )
    beta2: float = field(
        default=0.999,
        metadata=about("Beta 2", "Decay of the mean of squared gradients.", (0.0, 0.99999)),
    )
    epsilon: float = field(
        default=1e-8, metadata=about("Epsilon", "Added to the root of the squares.", (0.0, 1e-2))
    )
    clip: float = field(
        default=1.0,
        metadata=about(
            "Gradient clipping", "Largest norm of all gradients together; 0 is off.", (0.0, 1e6)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How long, how much at a time, and how the rate moves."""

    steps: int = field(
        default=1000, metadata=about("Steps", "Number of optimizer steps.", (1, 1_000_000))
    )
    batch: int = field(default=1, metadata=about("Batch", "Pictures per forward pass.", (1, 1024)))
    accumulate: int = field(
        default=1, metadata=about("Accumulation", "Forward passes per optimizer step.", (1, 1024))
    )
    warmup: int = field(
        default=0,
        metadata=about("Warm-up", "Steps over which the rate rises to its peak.", (0, 1_000_000)),
    )
    decay: str = field(
        default="cosine",
        metadata=about(
            "Decay", "How the rate goes on after the warm-up.", choices=("cosine", "constant")
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The objective, and how it is watched on fixed draws."""

    min_snr_gamma: float = field(
        default=5.0,
        metadata=about(
            "Min-SNR gamma",
            "Weight min(SNR, gamma) / SNR per sample, with SNR + 1 below where v is predicted; 0 is off. Flows are not weighted.",
            (0.0, 100.0),
        ),
    )
    noise_offset: float = field(
        default=0.0,
        metadata=about(
            "Noise offset",
            "Size of what is added to the noise of whole channels, for darker and brighter pictures; 0 is off.",
            (0.0, 1.0),
        ),
    )
    zero_terminal_snr: bool = field(
        default=False,
        metadata=about(
            "Zero terminal SNR",
            "Rescale the noise schedule so that its last step is noise alone; for models that predict v and were trained so.",
        ),
    )
    validation_draws: int = field(
        default=32,
        metadata=about(
            "Validation draws",
            "Fixed pairs of noise and timestep that the validation loss is taken on; 0 is off.",
            (0, 4096),
        ),
    )
    validation_every: int = field(
        default=0,
        metadata=about(
            "Validation every",
            "Steps between validations; 0 only at the start and the end.",
            (0, 1_000_000),
        ),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where and how the run computes."""

    seed: int = field(
        default=0,
        metadata=about(
            "Seed",
            "The same seed, inputs and thread count give the same file on a CPU.",
            (0, 2**32 - 1),
        ),
    )
    device: str = field(
        default="auto",
        metadata=about("Device", "Where to compute.", choices=("auto", "cpu", "cuda")),
    )
    precision: str = field(
        default="fp32",
        metadata=about(
            "Computation",
            "Precision of the base model; the network itself is always fp32. fp16 scales the loss.",
            choices=("fp32", "fp16", "bf16"),
        ),
    )
    storage: str = field(
        default="same",
        metadata=about(
            "Base model",
            "fp8 stores the frozen weights inside the blocks in 8 bits and brings each layer back when it is used.",
            choices=("same", "fp8"),
        ),
    )
    vae_precision: str = field(
        default="same",
        metadata=about(
            "VAE", "Precision in which pictures are encoded.", choices=("same", "fp32", "bf16")
        ),
    )
    vae_tiling: bool = field(
        default=False,
        metadata=about(
            "VAE in tiles", "Encode large pictures in tiles of 512 pixels whose seams are blended."
        ),
    )
    attention: str = field(
        default="sdp",
        metadata=about(
            "Attention",
            "Torch's own, or xformers where it is installed.",
            choices=("sdp", "xformers"),
        ),
    )
    checkpointing: bool = field(
        default=False,
        metadata=about(
            "Gradient checkpointing",
            "Compute each block again in the backward pass instead of keeping what it holds: the same numbers, about 30 % slower.",
        ),
    )
    threads: int = field(
        default=0,
        metadata=about("Threads", "CPU threads; 0 is what torch takes by itself.", (0, 1024)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything a training run is asked to do."""

    model: ModelConfig
    data: DataConfig
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    saving: SavingConfig
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], folder: Path = Path()) -> TrainConfig:
        """Read {section: {key: value}}; relative paths are taken from `folder`. Raises ConfigError with ALL problems."""
        problems = [
            (name, f"There is no such section. {did_you_mean(name, SECTIONS)}")
            for name in raw
            if name not in SECTIONS
        ]
        sections = {
            name: read_section(name, kind, raw.get(name, {}), folder, problems)
            for name, kind in SECTIONS.items()
        }
        problems += _cross_problems(sections)
        if problems:
            raise ConfigError(problems)
        return cls(**{name: SECTIONS[name](**values) for name, values in sections.items()})

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Return plain JSON values that `from_dict` reads back to an equal record."""
        plain = dataclasses.asdict(self)
        return {
            section: {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
            for section, values in plain.items()
        }


SECTIONS: dict[str, type] = typing.get_type_hints(TrainConfig)
"""Section name -> its record."""


def with_settings(
    raw: Mapping[str, Mapping[str, object]], settings: Iterable[str]
) -> dict[str, dict[str, object]]:
    """Return a copy of `raw` with each "section.key=value" put in; texts are read as the field's type.

    Names and values are checked by `TrainConfig.from_dict`. Raises UsageError for a text of another form.
    """
    changed = {section: dict(values) for section, values in raw.items()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise UsageError(
                f"A setting reads section.key=value, such as run.seed=1; found {setting!r}."
            )
        hints = typing.get_type_hints(SECTIONS[section]) if section in SECTIONS else {}
        changed.setdefault(section, {})[key] = from_text(text, hints.get(key, str))
    return changed


def _cross_problems(sections: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Find what is wrong between fields; a field that is wrong by itself is `None` and says so already."""
    size, step = (sections["data"][name] for name in ("size", "bucket_step"))
    saving = sections["saving"]
    out, network, schedule = saving["out"], sections["network"], sections["schedule"]
    steps, warmup = schedule["steps"], schedule["warmup"]
    checks = (
        ("data.size", size is not None and size % 8 != 0, f"Must be divisible by 8; found {size}."),
        (
            "data.bucket_step",
            step is not None and step % 8 != 0,
            f"Must be divisible by 8; found {step}.",
        ),
        (
            "network",
            network["unet"] is False and network["text_encoder"] is False,
            "Nothing would be trained: set unet or text_encoder to true.",
        ),
        (
            "network.dora",
            network["dora"] is True and network["type"] not in (*DORA_BASES, None),
            f"Goes with {', '.join(DORA_BASES)}; the type is {network['type']}.",
        ),
        ("network.factor", network["factor"] == 0, "Must be -1, or 1 and more; found 0."),
        (
            "saving.dialect",
            saving["dialect"] == "diffusers"
            and (network["type"] not in ("lora", None) or network["tucker"] is True),
            "The diffusers names hold plain LoRA and its DoRA alone; choose kohya.",
        ),
        (
            "schedule.warmup",
            None not in (steps, warmup) and warmup >= steps,
            f"Must be less than the {steps} steps; found {warmup}.",
        ),
        (
            "samples.size",
            bool(sections["samples"]["size"]) and sections["samples"]["size"] % 8 != 0,
            f"Must be divisible by 8; found {sections['samples']['size']}.",
        ),
        (
            "saving.out",
            out is not None and out.suffix != ".safetensors",
            f"Must end in .safetensors; found {out and out.name!r}.",
        ),
        ("saving.out", *_cannot_be_written(out, sections["model"]["base"])),
    )
    return [(name, sentence) for name, wrong, sentence in checks if wrong]


def _cannot_be_written(out: Path | None, base: Path | None) -> tuple[bool, str]:
    """Say what would only come up when the training is over."""
    if out is None or base is None:
        return False, ""
    if not fits_every_system(out.name):
        return True, f"{out.name!r} is a name that some system cannot hold; choose another."
    if out.is_dir():
        return True, f"{str(out)!r} is a folder; name a file."
    same = out.exists() and base.exists() and out.samefile(base)
    return same, "Is the base model, which is not overwritten."
