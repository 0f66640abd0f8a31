"""Which family a checkpoint belongs to, told from its keys and shapes alone."""

from __future__ import annotations

from lib_lora.errors import FileFormatError
from lib_lora.families.sd1 import SD1
from lib_lora.families.table import Family, Shapes

FAMILIES: tuple[Family, ...] = (SD1,)

# What a file that is no supported checkpoint is, by a piece of one of its keys; the first that fits is named.
KNOWN_PIECES = (
    ("lora_", "a LoRA file, not a checkpoint"),
    (".lora_A.", "a LoRA file, not a checkpoint"),
    (".hada_w1", "a LoHa file, not a checkpoint"),
    (".lokr_w", "a LoKr file, not a checkpoint"),
    ("conditioner.embedders.1.", "a Stable Diffusion XL checkpoint"),
    ("conditioner.embedders.0.model.", "a Stable Diffusion XL refiner"),
    ("joint_blocks.0.", "a Stable Diffusion 3 checkpoint"),
    ("cond_stage_model.model.", "a Stable Diffusion 2 checkpoint"),
    ("double_blocks.0.", "a Flux checkpoint"),
    ("single_transformer_blocks.0.", "a Flux checkpoint in the diffusers layout"),
    ("down_blocks.0.", "a part of a model in the diffusers layout, not a single-file checkpoint"),
    ("text_model.encoder.", "a text encoder alone"),
    ("first_stage_model.", "an incomplete checkpoint"),
)

# Which unsupported family a network file is made for, by a piece of one of its keys.
NETWORK_PIECES = (
    ("double_blocks", "Flux"),
    ("single_blocks", "Flux"),
    ("single_transformer_blocks", "Flux"),
    ("joint_blocks", "Stable Diffusion 3"),
    ("lora_te3_", "Stable Diffusion 3"),
    ("text_encoder_3.", "Stable Diffusion 3"),
    ("attn.add_q_proj", "Stable Diffusion 3"),
    ("attn_add_q_proj", "Stable Diffusion 3"),
    ("lora_te2_", "Stable Diffusion XL"),
    ("lora_te1_", "Stable Diffusion XL"),
    ("text_encoder_2.", "Stable Diffusion XL"),
    ("transformer_blocks_1_", "Stable Diffusion XL"),
    ("transformer_blocks.1.", "Stable Diffusion XL"),
)
SD2_CONTEXT = 1024


def detect_family(shapes: Shapes) -> Family:
    """Return the family of a checkpoint; raises FileFormatError that says what it seems to be when it is not supported."""
    for family in FAMILIES:
        if family.detect(shapes):
            return family
    accepted = ", ".join(family.label for family in FAMILIES)
    raise FileFormatError(f"This is {_describe(shapes)}: not supported yet. Accepted: {accepted}.")


def _describe(shapes: Shapes) -> str:
    conv_in = shapes.get("model.diffusion_model.input_blocks.0.0.weight", ())
    if len(conv_in) == 4 and conv_in[1] == 9:
        return "an inpainting checkpoint (nine input channels)"
    for piece, kind in KNOWN_PIECES:
        if any(piece in key for key in shapes):
            return kind
    return "no checkpoint of a known family"


def guess_network_family(shapes: Shapes) -> str | None:
    """Return the unsupported family that a network file seems made for, `None` when nothing tells of one."""
    for piece, label in NETWORK_PIECES:
        if any(piece in key for key in shapes):
            return label
    for key, shape in shapes.items():
        if "attn2_to_k.lora_down" in key or "attn2.to_k.lora_A" in key:
            return "Stable Diffusion 2" if shape[1:2] == (SD2_CONTEXT,) else None
    return None
