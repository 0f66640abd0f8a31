"""Files that are recognised and refused by name: pieces of keys that only one kind of model has.

The keys are those of the released files, in the original layout and in that of diffusers.
"""

from __future__ import annotations

# Checkpoints with a known family's UNet whose input tells more than the latent, by the number of input channels.
CONDITIONED = {
    5: "a depth-guided checkpoint (five input channels)",
    7: "an upscaling checkpoint (seven input channels)",
    8: "an image-conditioned checkpoint (eight input channels), such as InstructPix2Pix or Stable Video Diffusion",
    9: "an inpainting checkpoint (nine input channels)",
}

# What a file that is no supported checkpoint is, by a piece of one of its keys; the first that fits is named.
CHECKPOINT_PIECES = (
    ("lora_", "a LoRA file, not a checkpoint"),
    (".lora_A.", "a LoRA file, not a checkpoint"),
    (".hada_w1", "a LoHa file, not a checkpoint"),
    (".lokr_w", "a LoKr file, not a checkpoint"),
    ("control_model.", "a ControlNet"),
    ("motion_modules.", "an AnimateDiff motion module"),
    ("time_stack.", "a Stable Video Diffusion checkpoint"),
    ("time_mix_blocks.", "a Stable Video Diffusion checkpoint"),
    ("noise_augmentor.", "a Stable unCLIP checkpoint"),
    ("edm_mean", "a Playground 2.5 checkpoint"),
    ("encoder_hid_proj.", "a Kolors checkpoint"),
    ("distilled_guidance_layer.", "a Chroma checkpoint"),
    ("individual_token_refiner", "a Hunyuan Video checkpoint"),
    ("double_stream_blocks.", "a HiDream checkpoint"),
    ("double_blocks.0.", "a Flux checkpoint"),
    ("double_layers.0.", "an AuraFlow checkpoint"),
    ("joint_transformer_blocks.0.", "an AuraFlow checkpoint in the diffusers layout"),
    ("single_transformer_blocks.0.", "a Flux checkpoint in the diffusers layout"),
    ("clip_txt_mapper.", "a Stable Cascade checkpoint"),
    ("effnet_mapper.", "a Stable Cascade checkpoint"),
    (".channelwise.", "a Stable Cascade checkpoint"),
    ("head.modulation", "a Wan checkpoint"),
    ("inverted_conv.", "a Sana checkpoint"),
    ("conv_inverted.", "a Sana checkpoint in the diffusers layout"),
    ("cross_attn.kv_linear.", "a PixArt checkpoint"),
    ("patchify_proj.", "an LTX-Video checkpoint"),
    ("adaln_single.", "a PixArt checkpoint in the diffusers layout"),
    ("mlp_t5.", "a Hunyuan-DiT checkpoint"),
    ("t5_yproj.", "a Mochi checkpoint"),
    ("x_pad_token", "a Z-Image checkpoint"),
    ("cap_embedder.", "a Lumina 2 checkpoint"),
    ("transformer_blocks.0.img_mlp.", "a Qwen-Image checkpoint"),
    ("blocks.block0.", "a Cosmos checkpoint"),
    ("conditioner.embedders.1.", "an incomplete Stable Diffusion XL checkpoint"),
    ("conditioner.embedders.0.model.", "an incomplete Stable Diffusion XL refiner"),
    ("joint_blocks.0.", "a Stable Diffusion 3 transformer without its prefix"),
    ("cond_stage_model.model.", "an incomplete Stable Diffusion 2 checkpoint"),
    ("transformer_blocks.0.attn.add_q_proj.", "a transformer in the diffusers layout"),
    ("down_blocks.0.", "a part of a model in the diffusers layout, not a single-file checkpoint"),
    ("text_model.encoder.", "a text encoder alone"),
    ("first_stage_model.", "an incomplete checkpoint"),
    ("model.diffusion_model.", "an incomplete checkpoint"),
)

# Which unsupported family a network file is made for, by a piece of its names with every dot written as an underscore.
NETWORK_PIECES = (
    ("motion_modules_", "AnimateDiff"),
    ("time_stack_", "Stable Video Diffusion"),
    ("lora_prior_", "Stable Cascade"),
    ("encoder_hid_proj", "Kolors"),
    ("distilled_guidance_layer_", "Chroma"),
    ("individual_token_refiner", "Hunyuan Video"),
    ("img_mod_linear", "Hunyuan Video"),
    ("img_mlp_fc1", "Hunyuan Video"),
    ("double_stream_blocks_", "HiDream"),
    ("double_blocks_", "Flux"),
    ("single_blocks_", "Flux"),
    ("double_layers_", "AuraFlow"),
    ("joint_transformer_blocks_", "AuraFlow"),
    ("single_transformer_blocks_", "Flux"),
    ("cross_attn_kv_linear", "PixArt"),
    ("attn2_kv_proj", "Hunyuan-DiT"),
    ("attn1_Wqkv", "Hunyuan-DiT"),
    ("_cross_attn_", "Wan"),
    ("_img_mlp_", "Qwen-Image"),
    ("_img_mod_", "Qwen-Image"),
    ("layers_0_attention_", "Lumina 2 or Z-Image"),
    ("transformer_transformer_blocks_0_attn1_", "PixArt or LTX-Video"),
    ("diffusion_model_transformer_blocks_0_attn1_", "PixArt or LTX-Video"),
)
