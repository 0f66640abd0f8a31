"""The rows of the UNet that Stable Diffusion 1, 2 and XL share, for any number of levels and any transformer depth.

Left the diffusers path, right the path in the original checkpoint (CompVis' LDM). Two resnets per level on the way down, three on
the way up; the original counts input and output blocks through, one number per resnet or sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lib_lora.families.table import Row

RESNETS = 2

RESNET = (
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
)
AROUND_TRANSFORMER = ("norm", "proj_in", "proj_out")
TRANSFORMER = (
    *(f"attn{n}.{part}" for n in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")),
    *("ff.net.0.proj", "ff.net.2"),
    *("norm1", "norm2", "norm3"),
)
# Path endings of the layers that kohya trains.
TRAINED = (
    *(f"attn{n}.{part}" for n in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")),
    *(".proj_in", ".proj_out", "ff.net.0.proj", "ff.net.2"),
)


@cache
def unet_rows(depths: tuple[int, ...], mid_depth: int) -> tuple[Row, ...]:
    """Return the rows of a UNet.

    depths: transformer blocks per attention for each level on the way down, 0 where a level has no attention; mid_depth: the same
    for the middle.
    """
    rows = [
        _row("time_embedding.linear_1", "time_embed.0", None),
        _row("time_embedding.linear_2", "time_embed.2", None),
        _row("add_embedding.linear_1", "label_emb.0.0", None),
        _row("add_embedding.linear_2", "label_emb.0.2", None),
        _row("conv_in", "input_blocks.0.0", "IN00"),
    ]
    for level, depth in enumerate(depths):
        rows += _down(level, depth)
    rows += _resnet("mid_block.resnets.0", "middle_block.0", "M00")
    rows += _attention("mid_block.attentions.0", "middle_block.1", "M00", mid_depth)
    rows += _resnet("mid_block.resnets.1", "middle_block.2", "M00")
    for level, depth in enumerate(reversed(depths)):
        rows += _up(level, depth)
    return (*rows, _row("conv_norm_out", "out.0", None), _row("conv_out", "out.2", None))


def _down(level: int, depth: int) -> Iterator[Row]:
    path = f"down_blocks.{level}"
    first = 1 + level * (RESNETS + 1)
    for place in range(RESNETS):
        number = first + place
        block = f"IN{number:02}"
        yield from _resnet(f"{path}.resnets.{place}", f"input_blocks.{number}.0", block)
        yield from _attention(
            f"{path}.attentions.{place}", f"input_blocks.{number}.1", block, depth
        )
    number = first + RESNETS
    yield _row(f"{path}.downsamplers.0.conv", f"input_blocks.{number}.0.op", f"IN{number:02}")


def _up(level: int, depth: int) -> Iterator[Row]:
    path = f"up_blocks.{level}"
    first = level * (RESNETS + 1)
    for place in range(RESNETS + 1):
        number = first + place
        block = f"OUT{number:02}"
        yield from _resnet(f"{path}.resnets.{place}", f"output_blocks.{number}.0", block)
        yield from _attention(
            f"{path}.attentions.{place}", f"output_blocks.{number}.1", block, depth
        )
    number = first + RESNETS
    after = (
        2 if depth else 1
    )  # the upsampler follows the resnet and, where there is one, the attention
    original = f"output_blocks.{number}.{after}.conv"
    yield _row(f"{path}.upsamplers.0.conv", original, f"OUT{number:02}")


def _resnet(path: str, original: str, block: str) -> Iterator[Row]:
    for ours, theirs in RESNET:
        yield _row(f"{path}.{ours}", f"{original}.{theirs}", block)


def _attention(path: str, original: str, block: str, depth: int) -> Iterator[Row]:
    if not depth:
        return
    inner = [f"transformer_blocks.{n}.{part}" for n in range(depth) for part in TRANSFORMER]
    for name in (*AROUND_TRANSFORMER, *inner):
        yield _row(f"{path}.{name}", f"{original}.{name}", block)


def _row(path: str, original: str, block: str | None) -> Row:
    return Row(path, f"{original}.weight", f"{original}.bias", block)
