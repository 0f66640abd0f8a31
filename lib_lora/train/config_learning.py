"""What is learned, how fast, how long and by which objective."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lib_lora.networks.compose import NETWORK_TYPES, WITH_MAGNITUDES
from lib_lora.train.fields import about

TRAINABLE_TYPES = tuple(kind.id for kind in NETWORK_TYPES if kind.create is not None)
DORA_BASES = tuple(kind.id for kind in WITH_MAGNITUDES)


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


OPTIMIZER_PACKAGES = {"adamw8bit": "bitsandbytes", "prodigy": "prodigyopt", "lion": "lion_pytorch"}
"""The optional package that an optimizer needs, by the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its rates."""

    type: str = field(
        default="adamw",
        metadata=about(
            "Optimizer",
            "adamw8bit keeps its moments in 8 bits, on CUDA alone; lion keeps one, for a third of the rates; prodigy finds the rate by "
            "itself from rates of 1, and keeps twice as much. Each of them has a package that is prepared when it is asked for.",
            choices=("adamw", *OPTIMIZER_PACKAGES),
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
