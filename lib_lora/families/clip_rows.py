"""The rows of a CLIP text encoder stored as transformers names it.

Paths carry `text_model.` as original checkpoints and kohya files do. The modules of transformers 5 are named without it, those of
transformers 4 with it: whoever looks for a live module accepts both.
"""

from __future__ import annotations

from lib_lora.families.table import Row

MAX_LAYERS = 32
BLOCK = "BASE"

INNER = (
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")),
    *("layer_norm1", "mlp.fc1", "mlp.fc2", "layer_norm2"),
)


def clip_rows() -> tuple[Row, ...]:
    """Return the rows of a CLIP text encoder of up to `MAX_LAYERS` layers; its keys equal its paths."""
    paths = (
        "text_model.embeddings.token_embedding",
        "text_model.embeddings.position_embedding",
        *(f"text_model.encoder.layers.{n}.{part}" for n in range(MAX_LAYERS) for part in INNER),
        "text_model.final_layer_norm",
    )
    return tuple(Row(path, f"{path}.weight", f"{path}.bias", BLOCK) for path in paths)
