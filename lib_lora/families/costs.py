"""What a training keeps in memory of each layer between a forward and a backward pass, as a table for each kind of component.

Counted on the modules of diffusers and transformers with a network on every layer that is trained by default. The base is frozen:
a linear layer keeps its input only for the network beside it, a convolution and a normalisation keep theirs always. Attention by
`scaled_dot_product_attention` keeps queries, keys, values and its output, and no matrix of tokens by tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Kept(NamedTuple):
    """What a layer whose path fits `path` keeps for each token: `inputs` times its inputs and `outputs` times its outputs.

    enters: how often its inputs are kept where the block around it is computed again; text: whether its tokens are the text's; wide:
    how often its inputs are kept in fp32 besides, where the rest is computed in less; like: the layer beside it that has as many
    outputs as it has inputs, where its own shape tells of one head alone.
    """

    path: str
    inputs: float
    outputs: float = 0.0
    enters: float = 0.0
    text: bool = False
    wide: float = 0.0
    like: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """The table of a component.

    kept: the first row that fits a layer's path holds; tokens: (path, width of the latent, levels) -> tokens at that layer; text:
    tokens of the text; block: how the path of a layer begins that gradient checkpointing computes again.
    """

    kept: tuple[Kept, ...]
    tokens: Callable[[str, int, int], int]
    text: int
    block: str

    def row(self, path: str) -> Kept | None:
        """Return the row of a layer, `None` when nothing of it is kept."""
        return next((row for row in self.kept if re.search(row.path, path)), None)

    def block_of(self, path: str) -> str | None:
        """Return the block that a layer is computed again with, `None` when it is in none."""
        found = re.match(self.block, path)
        return found[0] if found else None


def level_of(path: str, levels: int) -> int:
    """Return how often the latent is halved at a layer of a UNet with this number of levels."""
    down, up = re.match(r"down_blocks\.(\d)", path), re.match(r"up_blocks\.(\d)", path)
    if down:
        return int(down[1])
    if up:
        return levels - 1 - int(up[1]) - ("upsamplers" in path)
    return levels - 1 if path.startswith("mid_block") else 0


def _unet_tokens(path: str, side: int, levels: int) -> int:
    return (-(-side // 2 ** level_of(path, levels))) ** 2


def _patches(path: str, side: int, levels: int) -> int:
    return (side // 2) ** 2


TEXT_TOKENS = 77


def _text_tokens(path: str, side: int, levels: int) -> int:
    return TEXT_TOKENS


UNET = Costs(
    kept=(
        Kept(r"resnets\.\d+\.norm1$", inputs=2, enters=1),
        Kept(r"resnets\.\d+\.norm2$", inputs=2),
        Kept(r"resnets\.\d+\.conv[12]$", inputs=1),
        Kept(r"transformer_blocks\.\d+\.norm1$", inputs=1, enters=1),
        Kept(r"transformer_blocks\.\d+\.norm[23]$", inputs=1),
        Kept(r"attn[12]\.to_q$", inputs=1, outputs=1),
        Kept(r"attn1\.to_[kv]$", inputs=0, outputs=1),
        Kept(r"attn2\.to_[kv]$", inputs=0, outputs=1, text=True),
        Kept(r"attn[12]\.to_out\.0$", inputs=1),
        Kept(r"ff\.net\.0\.proj$", inputs=1, outputs=1),
        Kept(r"ff\.net\.2$", inputs=2),
        Kept(r"attentions\.\d+\.(norm|proj_in|proj_out)$", inputs=1),
        Kept(r"samplers\.0\.conv$", inputs=1),
        Kept(r"conv_norm_out$", inputs=2),
        Kept(r"conv_out$", inputs=1),
    ),
    tokens=_unet_tokens,
    text=TEXT_TOKENS,
    block=r".*?(resnets|transformer_blocks)\.\d+",
)

# Modulation multiplies by numbers that are trained, so that it keeps what it multiplies. What attention gives to the two branches
# is copied where a batch has more than one picture: half of it here. 3.5 normalises queries and keys by the root of their mean square,
# in fp32, and keeps what came in.
MMDIT = Costs(
    kept=(
        Kept(r"norm1\.linear$", inputs=2, enters=1),
        Kept(r"norm1_context\.linear$", inputs=2, enters=1, text=True),
        Kept(r"attn2?\.to_q$", inputs=1, outputs=1),
        Kept(r"attn2?\.to_[kv]$", inputs=0, outputs=1),
        Kept(r"attn\.add_q_proj$", inputs=1, outputs=1, text=True),
        Kept(r"attn\.add_[kv]_proj$", inputs=0, outputs=1, text=True),
        Kept(r"attn2?\.norm_q$", inputs=1, wide=1, like="to_q"),
        Kept(r"attn2?\.norm_k$", inputs=1, wide=1, like="to_k"),
        Kept(r"attn\.norm_added_q$", inputs=1, wide=1, like="add_q_proj", text=True),
        Kept(r"attn\.norm_added_k$", inputs=1, wide=1, like="add_k_proj", text=True),
        Kept(r"attn2?\.to_out\.0$", inputs=1.5, outputs=1),
        Kept(r"attn\.to_add_out$", inputs=1.5, outputs=1, text=True),
        Kept(r"ff\.net\.0\.proj$", inputs=3, outputs=1),
        Kept(r"ff\.net\.2$", inputs=1, outputs=1),
        Kept(r"ff_context\.net\.0\.proj$", inputs=3, outputs=1, text=True),
        Kept(r"ff_context\.net\.2$", inputs=1, outputs=1, text=True),
    ),
    tokens=_patches,
    text=2 * TEXT_TOKENS,  # CLIP's and T5's
    block=r"transformer_blocks\.\d+",
)

CLIP = Costs(
    kept=(
        Kept(r"layer_norm1$", inputs=1, enters=1),
        Kept(r"layer_norm2$", inputs=1),
        Kept(r"q_proj$", inputs=1, outputs=1),
        Kept(r"[kv]_proj$", inputs=0, outputs=1),
        Kept(r"out_proj$", inputs=1),
        Kept(r"mlp\.fc1$", inputs=1, outputs=2),
        Kept(r"mlp\.fc2$", inputs=1),
        Kept(r"final_layer_norm$", inputs=1),
    ),
    tokens=_text_tokens,
    text=TEXT_TOKENS,
    block=r"(text_model\.)?encoder\.layers\.\d+",
)

COSTS: Mapping[str, Costs] = {"unet": UNET, "transformer": MMDIT, "te1": CLIP, "te2": CLIP}
"""By component."""

# Numbers for each pixel and each channel of the first layer that the autoencoder holds at once where it is largest.
ENCODER_PEAK, DECODER_PEAK = 3.5, 6.0

INNER = ("down_blocks.", "mid_block.", "up_blocks.", "transformer_blocks.")
"""How the paths begin whose linear layers and convolutions can be stored in eight bits; the first and the last layers cannot."""

MEDVRAM_SDXL = ("sdxl", "sdxl-refiner")
"""The families that AUTOMATIC1111's `--medvram-sdxl` is for."""
