"""What the names in a network file tell of the family it is made for.

Every clue leaves some families; those that all clues leave are possible. Of clues that contradict each other the first counts.
SD1's and SD2's names differ in the depth of the text encoder alone, so widths decide between what is left.
"""

from __future__ import annotations

Ids = frozenset[str]

SD1, SD2, SDXL, REFINER, SD3 = (
    frozenset({name}) for name in ("sd1", "sd2", "sdxl", "sdxl-refiner", "sd3")
)
FIRST_LEVEL = SD1 | SD2
FOUR_LEVELS = SD1 | SD2 | REFINER
DEEP = SDXL | REFINER
WITH_UNET = SD1 | SD2 | SDXL | REFINER
ALL = WITH_UNET | SD3

CLUES: tuple[tuple[str, Ids], ...] = (
    ("joint_blocks_", SD3),
    ("lora_te3_", SD3),
    ("text_encoder_3_", SD3),
    ("attn_add_q_proj", SD3),
    ("transformer_transformer_blocks_", SD3),
    ("text_encoders_clip_h_", SD2),
    ("text_encoders_t5xxl_", SD3),
    ("text_encoders_clip_g_", DEEP | SD3),
    ("text_encoders_clip_l_", SD1 | SDXL | SD3),
    ("lora_te2_", DEEP | SD3),
    ("text_encoder_2_", DEEP | SD3),
    ("lora_te1_", SDXL | SD3),
    ("lora_te_", SD1 | SD2),
    ("lora_te_text_model_encoder_layers_12_", SD2),
    ("text_encoder_text_model_encoder_layers_12_", SD2),
    ("down_blocks_", WITH_UNET),
    ("mid_block_", WITH_UNET),
    ("up_blocks_", WITH_UNET),
    ("input_blocks_", WITH_UNET),
    ("middle_block_", WITH_UNET),
    ("output_blocks_", WITH_UNET),
    ("down_blocks_0_attentions_", FIRST_LEVEL),
    ("up_blocks_3_attentions_", FIRST_LEVEL),
    ("input_blocks_1_1_", FIRST_LEVEL),
    ("input_blocks_2_1_", FIRST_LEVEL),
    ("output_blocks_9_1_", FIRST_LEVEL),
    ("output_blocks_10_1_", FIRST_LEVEL),
    ("down_blocks_3_", FOUR_LEVELS),
    ("up_blocks_3_", FOUR_LEVELS),
    ("output_blocks_11_", FOUR_LEVELS),
    ("up_blocks_0_attentions_", SDXL),
    ("output_blocks_0_1_", SDXL),
    *((f"_{n}_transformer_blocks_1_", DEEP) for n in range(3)),
    *((f"_{n}_transformer_blocks_4_", SDXL) for n in range(3)),
)
"""A piece of a name, every dot written as an underscore, and the families that have such names."""

CROSS_ATTENTION = (
    "attn2_to_k_lora_down_weight",
    "attn2_to_k_lora_A_weight",
    "attn2_to_k_hada_w1_b",
)
CONTEXT_WIDTHS = {768: SD1, 1024: SD2, 2048: SDXL, 1280: REFINER}
"""The width of the text that a released model's cross attention reads: the last dimension of `CROSS_ATTENTION`'s tensors."""

# What only the names of networks contain, never those of checkpoints.
NETWORK_MARKS = ("lora", "hada_w", "lokr_w", "oft_", ".alpha")
