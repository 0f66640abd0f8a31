"""The rows of the transformer of Stable Diffusion 3 and 3.5 (MMDiT: Esser et al., 2024, arXiv 2403.03206).

Left the diffusers path, right the path in the original checkpoint. A joint block has a branch for the picture and one for the text;
the original fuses q, k and v of a branch. In the last block the text branch ends after its attention's inputs: it has no
feed-forward part, and its modulation holds a shift and a scale alone, which diffusers keeps in the opposite order, as it does
those of the final layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lib_lora.families.table import WHOLE, Part, Row

MAX_BLOCKS = 38
FUSED = 3
SWAPPED = Part(swap_halves=True)

AROUND = (
    ("pos_embed.proj", "x_embedder.proj"),
    ("time_text_embed.timestep_embedder.linear_1", "t_embedder.mlp.0"),
    ("time_text_embed.timestep_embedder.linear_2", "t_embedder.mlp.2"),
    ("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
    ("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
    ("context_embedder", "context_embedder"),
    ("proj_out", "final_layer.linear"),
)
ATTENTIONS = (
    ("attn", ("to_q", "to_k", "to_v"), "x_block.attn"),
    ("attn", ("add_q_proj", "add_k_proj", "add_v_proj"), "context_block.attn"),
    ("attn2", ("to_q", "to_k", "to_v"), "x_block.attn2"),
)
INNER = (
    ("attn.norm_q", "x_block.attn.ln_q"),
    ("attn.norm_k", "x_block.attn.ln_k"),
    ("attn.norm_added_q", "context_block.attn.ln_q"),
    ("attn.norm_added_k", "context_block.attn.ln_k"),
    ("attn.to_out.0", "x_block.attn.proj"),
    ("attn.to_add_out", "context_block.attn.proj"),
    ("attn2.norm_q", "x_block.attn2.ln_q"),
    ("attn2.norm_k", "x_block.attn2.ln_k"),
    ("attn2.to_out.0", "x_block.attn2.proj"),
    ("norm1.linear", "x_block.adaLN_modulation.1"),
    ("ff.net.0.proj", "x_block.mlp.fc1"),
    ("ff.net.2", "x_block.mlp.fc2"),
    ("ff_context.net.0.proj", "context_block.mlp.fc1"),
    ("ff_context.net.2", "context_block.mlp.fc2"),
)
# Path endings of the layers that kohya trains.
TRAINED = (
    *(f"{path}.{name}" for path, names, _ in ATTENTIONS for name in names),
    *("attn.to_out.0", "attn.to_add_out", "attn2.to_out.0", "norm1.linear"),
    *("norm1_context.linear", "ff.net.0.proj", "ff.net.2"),
    *("ff_context.net.0.proj", "ff_context.net.2"),
)
BUFFERS = (("pos_embed.pos_embed", "pos_embed"),)


@cache
def mmdit_rows() -> tuple[Row, ...]:
    """Return the rows of a transformer of up to `MAX_BLOCKS` joint blocks."""
    rows = [_row(path, original, None) for path, original in AROUND]
    rows.append(_row("norm_out.linear", "final_layer.adaLN_modulation.1", None, SWAPPED))
    for n in range(MAX_BLOCKS):
        rows += _block(f"transformer_blocks.{n}", f"joint_blocks.{n}", f"J{n:02}")
    return tuple(rows)


def _block(path: str, original: str, block: str) -> Iterator[Row]:
    for attention, names, fused in ATTENTIONS:
        for index, name in enumerate(names):
            part = Part(index, of=FUSED)
            yield _row(f"{path}.{attention}.{name}", f"{original}.{fused}.qkv", block, part)
    for ours, theirs in INNER:
        yield _row(f"{path}.{ours}", f"{original}.{theirs}", block)
    modulation = f"{original}.context_block.adaLN_modulation.1"
    yield Row(
        f"{path}.norm1_context.linear",
        f"{modulation}.weight",
        f"{modulation}.bias",
        block,
        lacking=(f"{original}.context_block.mlp.fc1.weight", SWAPPED),
    )


def _row(path: str, original: str, block: str | None, part: Part = WHOLE) -> Row:
    return Row(path, f"{original}.weight", f"{original}.bias", block, part)
