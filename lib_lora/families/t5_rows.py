"""The rows of a T5 text encoder, stored as transformers names it."""

from __future__ import annotations

from functools import cache

from lib_lora.families.table import Row

MAX_BLOCKS = 24
BLOCK = "BASE"

INNER = (
    *(f"layer.0.SelfAttention.{part}" for part in "qkvo"),
    "layer.0.SelfAttention.relative_attention_bias",
    "layer.0.layer_norm",
    *(f"layer.1.DenseReluDense.{part}" for part in ("wi_0", "wi_1", "wo")),
    "layer.1.layer_norm",
)


@cache
def t5_rows() -> tuple[Row, ...]:
    """Return the rows of a T5 encoder of up to `MAX_BLOCKS` blocks; its keys equal its paths.

    Files hold the token embedding under one of its two names or under both.
    """
    paths = (
        "shared",
        "encoder.embed_tokens",
        *(f"encoder.block.{n}.{part}" for n in range(MAX_BLOCKS) for part in INNER),
        "encoder.final_layer_norm",
    )
    return tuple(Row(path, f"{path}.weight", f"{path}.bias", BLOCK) for path in paths)
