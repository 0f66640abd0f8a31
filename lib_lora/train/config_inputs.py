"""What a training starts from: the base model, the pictures and their captions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lib_lora.train.fields import about


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
    caption_parts: int = field(
        default=3,
        metadata=about(
            "Parts of a caption",
            "A caption is read in parts of 75 tokens, as the WebUI reads a prompt; what is beyond so many parts is cut. Brackets count as text.",
            (1, 8),
        ),
    )
    caption_orders: int = field(
        default=0,
        metadata=about(
            "Orders of tags",
            "Train each caption in so many drawn orders of its tags, which commas part; 0 keeps the one it has. All are encoded once, "
            "before the first step, so that text encoders can still be let go of; each takes 0.3 MB of the device with SDXL.",
            (0, 64),
        ),
    )
    keep_tags: int = field(
        default=0,
        metadata=about(
            "Tags kept in front", "How many tags stay first in every order of them.", (0, 64)
        ),
    )
    caption_dropout: float = field(
        default=0.0,
        metadata=about(
            "Caption dropout", "Share of samples trained with an empty caption.", (0.0, 1.0)
        ),
    )
