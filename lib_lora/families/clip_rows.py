"""The rows of a CLIP text encoder, stored as transformers names it or as OpenCLIP does.

Paths carry `text_model.` as original checkpoints and kohya files do. The modules of transformers 5 are named without it, those of
transformers 4 with it: whoever looks for a live module accepts both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lib_lora.families.table import Part, Row

MAX_LAYERS = 32
BLOCK = "BASE"
WRAPPER = "text_model."
POSITION_IDS = "text_model.embeddings.position_ids"
BUFFERS = ((POSITION_IDS, POSITION_IDS),)

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
INNER = (
    *(f"self_attn.{part}" for part in (*PROJECTIONS, "out_proj")),
    *("layer_norm1", "mlp.fc1", "mlp.fc2", "layer_norm2"),
)
OPENCLIP_INNER = (
    ("self_attn.out_proj", "attn.out_proj"),
    ("layer_norm1", "ln_1"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
    ("layer_norm2", "ln_2"),
)
# Path endings of the layers that kohya trains.
TRAINED = (
    *(f"self_attn.{part}" for part in (*PROJECTIONS, "out_proj")),
    *("mlp.fc1", "mlp.fc2"),
)


@cache
def clip_rows() -> tuple[Row, ...]:
    """Return the rows of a CLIP text encoder of up to `MAX_LAYERS` layers; its keys equal its paths."""
    paths = (
        "text_model.embeddings.token_embedding",
        "text_model.embeddings.position_embedding",
        *(f"text_model.encoder.layers.{n}.{part}" for n in range(MAX_LAYERS) for part in INNER),
        "text_model.final_layer_norm",
        "text_projection",
    )
    return tuple(Row(path, f"{path}.weight", f"{path}.bias", BLOCK) for path in paths)


@cache
def openclip_rows(layers: int = MAX_LAYERS, projection: bool = True) -> tuple[Row, ...]:
    """Return the rows of an OpenCLIP text encoder: q, k and v are one tensor, the projection is transposed.

    layers: how many of its blocks the family computes; projection: whether it uses the projection.
    """
    rows = [
        _row("text_model.embeddings.token_embedding", "token_embedding"),
        Row("text_model.embeddings.position_embedding", "positional_embedding", "", BLOCK),
    ]
    for n in range(layers):
        rows += _block(f"text_model.encoder.layers.{n}", f"transformer.resblocks.{n}")
    rows.append(_row("text_model.final_layer_norm", "ln_final"))
    if projection:
        transposed = Part(transpose=True)
        rows.append(Row("text_projection", "text_projection", "", BLOCK, transposed))
    return tuple(rows)


def _block(path: str, original: str) -> Iterator[Row]:
    weight, bias = f"{original}.attn.in_proj_weight", f"{original}.attn.in_proj_bias"
    for index, name in enumerate(PROJECTIONS):
        part = Part(index, of=len(PROJECTIONS))
        yield Row(f"{path}.self_attn.{name}", weight, bias, BLOCK, part)
    for ours, theirs in OPENCLIP_INNER:
        yield _row(f"{path}.{ours}", f"{original}.{theirs}")


def _row(path: str, original: str) -> Row:
    return Row(path, f"{original}.weight", f"{original}.bias", BLOCK)
