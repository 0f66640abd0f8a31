"""A random model with the widths of the embedded base model, for tests."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from lib_lora.formats.original import to_original
from lib_lora.formats.stream import write_tensors

CONFIG = Path(__file__).parents[1] / "lib_lora" / "demo" / "model"


def tiny_components(seed: int = 0) -> dict[str, nn.Module]:
    """Return fresh random modules by component name, in float32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        modules = {
            "unet": UNet2DConditionModel.from_config(
                UNet2DConditionModel.load_config(CONFIG / "unet")
            ),
            "te1": CLIPTextModel(CLIPTextConfig.from_pretrained(CONFIG / "text_encoder")),
            "vae": AutoencoderKL.from_config(AutoencoderKL.load_config(CONFIG / "vae")),
        }
    return {name: module.eval() for name, module in modules.items()}


def tiny_checkpoint(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a random model as an original SD1 checkpoint and return the file."""
    states = {
        name: {key: tensor.to(dtype) for key, tensor in module.state_dict().items()}
        for name, module in tiny_components(seed).items()
    }
    file = folder / f"tiny-{seed}.safetensors"
    write_tensors(file, to_original(states), {})
    return file
