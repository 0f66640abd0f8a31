"""Random models of each family, as small as the structure allows, and single-file checkpoints of them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, UNet2DConditionModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)

from lib_lora.families.sd1 import SD1
from lib_lora.families.sd2 import SD2
from lib_lora.families.sd3 import SD3
from lib_lora.families.sdxl import SDXL
from lib_lora.families.table import Family
from lib_lora.formats.original import to_original
from lib_lora.formats.stream import write_tensors
from lib_lora.train.base_model import load_tokenizer

CROSS, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
UP = {CROSS: "CrossAttnUpBlock2D", PLAIN: "UpBlock2D"}
END, START = 49407, 49406


def clip(width, *, activation="quick_gelu", projection=None, padding=END):
    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=max(1, width // 64),
        projection_dim=projection or width,
        hidden_act=activation,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=padding,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def unet(channels, depths, heads, **rest):
    types = [CROSS if depth else PLAIN for depth in depths]
    return UNet2DConditionModel(
        block_out_channels=channels,
        down_block_types=types,
        up_block_types=[UP[each] for each in reversed(types)],
        transformer_layers_per_block=[depth or 1 for depth in depths],
        attention_head_dim=heads,
        **rest,
    )


def vae(channels=4, scale=0.18215, **rest):
    return AutoencoderKL(
        block_out_channels=(32, 32, 32, 32),
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        layers_per_block=2,
        latent_channels=channels,
        scaling_factor=scale,
        **rest,
    )


def sd1():
    return {
        "unet": unet((32, 32, 64, 64), (1, 1, 1, 0), 8, cross_attention_dim=32),
        "te1": clip(32),
        "vae": vae(),
    }


def sd2():
    heads = [1, 1, 1, 2]
    told = {"cross_attention_dim": 32, "use_linear_projection": True}
    return {
        "unet": unet((32, 32, 64, 128), (1, 1, 1, 0), heads, **told),
        "te1": clip(32, activation="gelu", padding=0),
        "vae": vae(),
    }


def sdxl():
    """Three levels, more attention the deeper; sizes as vectors of 8 numbers each."""
    told = {
        "cross_attention_dim": 32 + 64,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 40,
    }
    return {
        "unet": unet((32, 64, 64), (0, 1, 2), [1, 1, 1], **told),
        "te1": clip(32),
        "te2": clip(64, activation="gelu", projection=40, padding=0),
        "vae": vae(scale=0.13025),
    }


def sd3():
    transformer = SD3Transformer2DModel(
        num_layers=3,
        attention_head_dim=64,
        num_attention_heads=1,
        joint_attention_dim=128,
        caption_projection_dim=64,
        pooled_projection_dim=32 + 40,
        pos_embed_max_size=16,
    )
    config = T5Config(
        vocab_size=len(WORDS),
        d_model=128,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return {
        "transformer": transformer,
        "te1": clip(32),
        "te2": clip(64, activation="gelu", projection=40, padding=0),
        "te3": T5EncoderModel(config),
        "vae": vae(
            16, 1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False
        ),
    }


@dataclass(frozen=True)
class Kind:
    """A family, and what makes a small model of it."""

    family: Family
    make: object


KINDS = {
    "sd1": Kind(SD1, sd1),
    "sd2": Kind(SD2, sd2),
    "sdxl": Kind(SDXL, sdxl),
    "sd3": Kind(SD3, sd3),
}
WORDS = ["<pad>", "</s>", "<unk>", "a", "circle,", "number", "1", "3", "fox"]


def modules(name, seed=0):
    """Return fresh random modules of a family by component, in float32.

    Fresh text encoders answer every text nearly alike, and fresh transformers do not look at the text: their weights are spread.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = KINDS[name].make()
        for component, module in made.items():
            if component.startswith("te") or component == "transformer":
                for parameter in module.parameters():
                    if parameter.dim() > 1:
                        parameter.data += 0.05 * torch.randn(parameter.shape)
    return {component: module.eval() for component, module in made.items()}


def checkpoint(folder: Path, name, seed=0, without=(), metadata=None, extra=()):
    """Write a random model of a family in the original layout, without some components, with empty marker tensors."""
    family = KINDS[name].family
    states = {component: module.state_dict() for component, module in modules(name, seed).items()}
    if "te3" in states:
        # Files hold T5's embedding once.
        states["te3"] = {
            k: v for k, v in states["te3"].items() if k != "encoder.embed_tokens.weight"
        }
    tensors = to_original(states, family)
    gone = tuple(c.checkpoint for c in family.components if c.name in without)
    kept = {
        key: tensor.contiguous()
        for key, tensor in tensors.items()
        if not key.startswith(gone or ("\0",))
    }
    file = folder / f"{name}-{seed}.safetensors"
    write_tensors(file, kept | {key: torch.zeros(0) for key in extra}, metadata or {})
    return file


def t5_tokenizer(folder: Path):
    """Write a tokenizer of a few words that ends texts as T5's does; return the configuration folder that holds it."""
    place = folder / "tokenizer_3"
    place.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(place / "tokenizer.json"))
    return folder


def clip_tokenizer(padding="<|endoftext|>"):
    """Return the CLIP tokenizer, filling texts up with a token of the family's choice."""
    tokenizer = load_tokenizer()
    tokenizer.pad_token = padding
    return tokenizer


def write_configs(folder: Path, name):
    """Write the configurations of a small model as diffusers' folders hold them."""
    names = {component.name: component.diffusers for component in KINDS[name].family.components}
    for component, module in modules(name).items():
        place = folder / names[component]
        place.mkdir(parents=True, exist_ok=True)
        module.config.save_pretrained(place) if component.startswith("te") else module.save_config(
            place
        )
