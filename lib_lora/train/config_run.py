"""Where and how a training computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from lib_lora.train.fields import about


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
    text_device: str = field(
        default="same",
        metadata=about(
            "Captions",
            "Where text encoders that are not trained read the captions, once, before the first step; cpu is slow, and has room for T5.",
            choices=("same", "cpu"),
        ),
    )
    vae_precision: str = field(
        default="same",
        metadata=about(
            "VAE", "Precision in which pictures are encoded.", choices=("same", "fp32", "bf16")
        ),
    )
    vae_slicing: bool = field(
        default=False,
        metadata=about(
            "VAE one by one",
            "Encode small pictures one after the other; else as many at once as fill 512 x 512 pixels.",
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
