"""The sizes of the published models of each family, and the shapes of all layers that they imply.

A plan that is asked for without a file takes these; a file's own header is taken where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from lib_lora.families.mmdit_rows import ATTENTIONS
from lib_lora.families.sd1 import SD1
from lib_lora.families.sd2 import SD2
from lib_lora.families.sd3 import SD3, SD35_LARGE, SD35_MEDIUM
from lib_lora.families.sdxl import SDXL
from lib_lora.families.table import Family, Layer, Placement
from lib_lora.families.unet_rows import RESNETS

VOCABULARY, POSITIONS = 49408, 77
T5_VOCABULARY, T5_BUCKETS, T5_HEADS = 32128, 32, 64
SOMEWHERE = Placement("")

Sized = tuple[str, tuple[int, ...], bool]
"""A layer's path, the shape of its weight, and whether it has a bias."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published model: what lists the layers of each component, and how many numbers of a component are no layer's."""

    family: Family
    components: Mapping[str, Callable[[], Iterable[Sized]]]
    buffers: Mapping[str, int] = field(default_factory=dict)

    def layers(self) -> dict[str, Layer]:
        """Return every layer by its id; where it lies in a file is not told."""
        listed = (
            Layer(name, path, SOMEWHERE, SOMEWHERE if biased else None, shape)
            for name, list_layers in self.components.items()
            for path, shape, biased in list_layers()
        )
        return {layer.id: layer for layer in listed}


def unet(
    channels: tuple[int, ...],
    depths: tuple[int, ...],
    mid_depth: int,
    context: int,
    pointwise: bool = False,
    vector: int = 0,
) -> Iterator[Sized]:
    """List the layers of a UNet in the order of computation.

    channels, depths: of each level on the way down; context: the width of the text; pointwise: whether 1x1 convolutions lie around
    its attention; vector: the width of what SDXL is told besides.
    """
    first, last = channels[0], channels[-1]
    time = 4 * first
    yield from _pair("time_embedding.linear_", first, time)
    if vector:
        yield from _pair("add_embedding.linear_", vector, time)
    yield "conv_in", (first, 4, 3, 3), True
    block = partial(_stage, time=time, context=context, pointwise=pointwise)
    skips, width = [first], first
    for level, (wide, depth) in enumerate(zip(channels, depths, strict=True)):
        path = f"down_blocks.{level}"
        for place in range(RESNETS):
            yield from block(path, place, width, wide, depth)
            width = wide
            skips.append(width)
        if level < len(channels) - 1:
            yield f"{path}.downsamplers.0.conv", (wide, wide, 3, 3), True
            skips.append(width)
    yield from block("mid_block", 0, last, last, mid_depth)
    yield from block("mid_block", 1, last, last, 0)
    for level, (wide, depth) in enumerate(zip(channels[::-1], depths[::-1], strict=True)):
        path = f"up_blocks.{level}"
        for place in range(RESNETS + 1):
            yield from block(path, place, width + skips.pop(), wide, depth)
            width = wide
        if level < len(channels) - 1:
            yield f"{path}.upsamplers.0.conv", (wide, wide, 3, 3), True
    yield "conv_norm_out", (first,), True
    yield "conv_out", (4, first, 3, 3), True


def vae(latent: int = 4, quantized: bool = True) -> Iterator[Sized]:
    """List the layers of the autoencoder. latent: its channels; quantized: whether 1x1 convolutions lie around its latent."""
    channels = (128, 256, 512, 512)
    sides = (
        ("encoder", "down", channels, RESNETS, 3, 2 * latent),
        ("decoder", "up", channels[::-1], RESNETS + 1, latent, 3),
    )
    for side, way, widths, resnets, wanted, given in sides:
        width = widths[0]
        yield f"{side}.conv_in", (width, wanted, 3, 3), True
        for level, wide in enumerate(widths):
            path = f"{side}.{way}_blocks.{level}"
            for place in range(resnets):
                yield from _resnet(f"{path}.resnets.{place}", width, wide)
                width = wide
            if level < len(widths) - 1:
                yield f"{path}.{way}samplers.0.conv", (wide, wide, 3, 3), True
        middle = channels[-1]
        for place in range(2):
            yield from _resnet(f"{side}.mid_block.resnets.{place}", middle, middle)
        yield f"{side}.mid_block.attentions.0.group_norm", (middle,), True
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{side}.mid_block.attentions.0.{name}", (middle, middle), True
        yield f"{side}.conv_norm_out", (widths[-1],), True
        yield f"{side}.conv_out", (given, widths[-1], 3, 3), True
    if quantized:
        yield "quant_conv", (2 * latent, 2 * latent, 1, 1), True
        yield "post_quant_conv", (latent, latent, 1, 1), True


def clip(width: int, layers: int, projection: bool = False) -> Iterator[Sized]:
    """List the layers of a CLIP text encoder."""
    yield "text_model.embeddings.token_embedding", (VOCABULARY, width), False
    yield "text_model.embeddings.position_embedding", (POSITIONS, width), False
    for number in range(layers):
        path = f"text_model.encoder.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"{path}.self_attn.{name}", (width, width), True
        yield f"{path}.layer_norm1", (width,), True
        yield f"{path}.mlp.fc1", (4 * width, width), True
        yield f"{path}.mlp.fc2", (width, 4 * width), True
        yield f"{path}.layer_norm2", (width,), True
    yield "text_model.final_layer_norm", (width,), True
    if projection:
        yield "text_projection", (width, width), False


def t5(width: int = 4096, inner: int = 10240, blocks: int = 24) -> Iterator[Sized]:
    """List the layers of a T5 encoder; its token embedding lies in a file under one of two names or both, here under one."""
    yield "encoder.embed_tokens", (T5_VOCABULARY, width), False
    for number in range(blocks):
        path = f"encoder.block.{number}.layer"
        for name in "qkvo":
            yield f"{path}.0.SelfAttention.{name}", (width, width), False
        if number == 0:
            shape = (T5_BUCKETS, T5_HEADS)
            yield f"{path}.0.SelfAttention.relative_attention_bias", shape, False
        yield f"{path}.0.layer_norm", (width,), False
        for name in ("wi_0", "wi_1"):
            yield f"{path}.1.DenseReluDense.{name}", (inner, width), False
        yield f"{path}.1.DenseReluDense.wo", (width, inner), False
        yield f"{path}.1.layer_norm", (width,), False
    yield "encoder.final_layer_norm", (width,), False


def mmdit(width: int, blocks: int, normalised: int = 0, second: int = 0) -> Iterator[Sized]:
    """List the layers of SD3's transformer.

    normalised: the width of the heads whose queries and keys 3.5 normalises; second: how many blocks attend twice.
    """
    yield "pos_embed.proj", (width, 16, 2, 2), True
    yield from _pair("time_text_embed.timestep_embedder.linear_", 256, width)
    yield from _pair("time_text_embed.text_embedder.linear_", 2048, width)
    yield "context_embedder", (width, 4096), True
    for number in range(blocks):
        last = number == blocks - 1
        yield from _joint(f"transformer_blocks.{number}", width, normalised, number < second, last)
    yield "norm_out.linear", (2 * width, width), True
    yield "proj_out", (64, width), True


def _pair(path: str, given: int, wide: int) -> Iterator[Sized]:
    yield f"{path}1", (wide, given), True
    yield f"{path}2", (wide, wide), True


def _stage(
    path: str,
    place: int,
    given: int,
    wide: int,
    depth: int,
    time: int,
    context: int,
    pointwise: bool,
) -> Iterator[Sized]:
    """List a resnet and the attention that follows it where there is one."""
    yield from _resnet(f"{path}.resnets.{place}", given, wide, time)
    if not depth:
        return
    attention = f"{path}.attentions.{place}"
    around = (wide, wide, 1, 1) if pointwise else (wide, wide)
    yield f"{attention}.norm", (wide,), True
    yield f"{attention}.proj_in", around, True
    for number in range(depth):
        block = f"{attention}.transformer_blocks.{number}"
        for one, given_text in (("attn1", wide), ("attn2", context)):
            yield f"{block}.{one}.to_q", (wide, wide), False
            yield f"{block}.{one}.to_k", (wide, given_text), False
            yield f"{block}.{one}.to_v", (wide, given_text), False
            yield f"{block}.{one}.to_out.0", (wide, wide), True
        yield f"{block}.ff.net.0.proj", (8 * wide, wide), True
        yield f"{block}.ff.net.2", (wide, 4 * wide), True
        for norm in range(1, 4):
            yield f"{block}.norm{norm}", (wide,), True
    yield f"{attention}.proj_out", around, True


def _resnet(path: str, given: int, wide: int, time: int = 0) -> Iterator[Sized]:
    yield f"{path}.norm1", (given,), True
    yield f"{path}.conv1", (wide, given, 3, 3), True
    if time:
        yield f"{path}.time_emb_proj", (wide, time), True
    yield f"{path}.norm2", (wide,), True
    yield f"{path}.conv2", (wide, wide, 3, 3), True
    if given != wide:
        yield f"{path}.conv_shortcut", (wide, given, 1, 1), True


def _joint(path: str, width: int, normalised: int, twice: bool, last: bool) -> Iterator[Sized]:
    """List a joint block; in the last one the branch of the text ends with its queries, keys and values."""
    yield f"{path}.norm1.linear", ((9 if twice else 6) * width, width), True
    yield f"{path}.norm1_context.linear", ((2 if last else 6) * width, width), True
    for attention, names, _ in ATTENTIONS[: 3 if twice else 2]:
        for name in names:
            yield f"{path}.{attention}.{name}", (width, width), True
    outs = ("attn.to_out.0", *("attn.to_add_out",) * (not last), *("attn2.to_out.0",) * twice)
    for name in outs:
        yield f"{path}.{name}", (width, width), True
    if normalised:
        norms = ("attn.norm_q", "attn.norm_k", "attn.norm_added_q", "attn.norm_added_k")
        for name in (*norms, *("attn2.norm_q", "attn2.norm_k") * twice):
            yield f"{path}.{name}", (normalised,), False
    for branch in ("ff", *("ff_context",) * (not last)):
        yield f"{path}.{branch}.net.0.proj", (4 * width, width), True
        yield f"{path}.{branch}.net.2", (width, 4 * width), True


SD_CHANNELS = (320, 640, 1280, 1280)
CLIP_L = partial(clip, 768, 12)
CLIP_G = partial(clip, 1280, 32, projection=True)
SD3_ENCODERS: Mapping[str, Callable[[], Iterable[Sized]]] = {
    "te1": partial(clip, 768, 12, projection=True),
    "te2": CLIP_G,
    "te3": t5,
    "vae": partial(vae, latent=16, quantized=False),
}

PUBLISHED: Mapping[str, Published] = {
    "sd1": Published(
        SD1,
        {
            "unet": partial(unet, SD_CHANNELS, (1, 1, 1, 0), 1, 768, pointwise=True),
            "te1": CLIP_L,
            "vae": vae,
        },
    ),
    "sd2": Published(
        SD2,
        {
            "unet": partial(unet, SD_CHANNELS, (1, 1, 1, 0), 1, 1024),
            "te1": partial(clip, 1024, 23),
            "vae": vae,
        },
    ),
    "sdxl": Published(
        SDXL,
        {
            "unet": partial(unet, SD_CHANNELS[:3], (0, 2, 10), 10, 2048, vector=2816),
            "te1": CLIP_L,
            "te2": CLIP_G,
            "vae": vae,
        },
    ),
    "sd3": Published(
        SD3,
        {"transformer": partial(mmdit, 1536, 24), **SD3_ENCODERS},
        {"transformer": 192**2 * 1536},
    ),
    "sd3.5-medium": Published(
        SD35_MEDIUM,
        {"transformer": partial(mmdit, 1536, 24, normalised=64, second=13), **SD3_ENCODERS},
        {"transformer": 384**2 * 1536},
    ),
    "sd3.5-large": Published(
        SD35_LARGE,
        {"transformer": partial(mmdit, 2432, 38, normalised=64), **SD3_ENCODERS},
        {"transformer": 192**2 * 2432},
    ),
}
"""By the name that `plan --family` takes."""

NATIVE_SIZE: Mapping[str, int] = {
    "sd1": 512,
    "sd2": 768,
    "sdxl": 1024,
    "sdxl-refiner": 1024,
    "sd3": 1024,
}
"""Width and height of the pictures that a family was trained on, by the family's id."""
