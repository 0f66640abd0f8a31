"""The rows of the autoencoder that Stable Diffusion 1, 2 and XL share.

Left the diffusers path, right the path in the original checkpoint. The original counts the decoder's levels from the picture
inwards, diffusers in the order of computation; the original's attention is made of 1x1 convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lib_lora.families.table import WHOLE, Part, Row

RESNETS = 2

RESNET = (
    ("norm1", "norm1"),
    ("conv1", "conv1"),
    ("norm2", "norm2"),
    ("conv2", "conv2"),
    ("conv_shortcut", "nin_shortcut"),
)
ATTENTION = (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out"))
SIDES = (("encoder", "down", RESNETS), ("decoder", "up", RESNETS + 1))


@cache
def vae_rows(levels: int) -> tuple[Row, ...]:
    """Return the rows of an autoencoder with this number of levels."""
    rows: list[Row] = []
    for side, way, resnets in SIDES:
        rows.append(_row(f"{side}.conv_in", f"{side}.conv_in"))
        for level in range(levels):
            counted = level if way == "down" else levels - 1 - level
            rows += _level(f"{side}.{way}_blocks.{level}", f"{side}.{way}.{counted}", way, resnets)
        rows += _middle(side)
        rows.append(_row(f"{side}.conv_norm_out", f"{side}.norm_out"))
        rows.append(_row(f"{side}.conv_out", f"{side}.conv_out"))
    return (*rows, _row("quant_conv", "quant_conv"), _row("post_quant_conv", "post_quant_conv"))


def _level(path: str, original: str, way: str, resnets: int) -> Iterator[Row]:
    for place in range(resnets):
        yield from _resnet(f"{path}.resnets.{place}", f"{original}.block.{place}")
    yield _row(f"{path}.{way}samplers.0.conv", f"{original}.{way}sample.conv")


def _middle(side: str) -> Iterator[Row]:
    path, original = f"{side}.mid_block", f"{side}.mid"
    yield from _resnet(f"{path}.resnets.0", f"{original}.block_1")
    yield _row(f"{path}.attentions.0.group_norm", f"{original}.attn_1.norm")
    for ours, theirs in ATTENTION:
        attention = f"{original}.attn_1.{theirs}"
        yield _row(f"{path}.attentions.0.{ours}", attention, Part(pointwise=True))
    yield from _resnet(f"{path}.resnets.1", f"{original}.block_2")


def _resnet(path: str, original: str) -> Iterator[Row]:
    for ours, theirs in RESNET:
        yield _row(f"{path}.{ours}", f"{original}.{theirs}")


def _row(path: str, original: str, part: Part = WHOLE) -> Row:
    return Row(path, f"{original}.weight", f"{original}.bias", part=part)
