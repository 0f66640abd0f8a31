"""A base of a dozen tensors that has all that a merge treats differently, and LoRA for it; random, seeded."""

import torch

from lib_lora.families.sd1 import CLIP, SD1, UNET, VAE

W = 256  # wide enough for the statistics of a tensor's roundings
FIRST = f"{UNET}input_blocks.1."
SHAPES = {
    f"{UNET}input_blocks.0.0.weight": (W, 4, 3, 3),
    f"{UNET}input_blocks.0.0.bias": (W,),
    f"{FIRST}0.in_layers.2.weight": (W, 32, 3, 3),
    f"{FIRST}1.proj_in.weight": (W, W, 1, 1),
    f"{FIRST}1.transformer_blocks.0.attn1.to_q.weight": (W, W),
    f"{FIRST}1.transformer_blocks.0.attn1.to_k.weight": (W, W),
    f"{FIRST}1.transformer_blocks.0.ff.net.2.weight": (W, 4 * W),
    f"{CLIP}text_model.embeddings.token_embedding.weight": (50, W),
    f"{CLIP}text_model.encoder.layers.0.mlp.fc1.weight": (W, W),
    f"{VAE}decoder.conv_in.weight": (W, 4, 3, 3),
}
CONV = "unet.down_blocks.0.resnets.0.conv1"
PROJ = "unet.down_blocks.0.attentions.0.proj_in"
QUERY = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
FEED = "unet.down_blocks.0.attentions.0.transformer_blocks.0.ff.net.2"
TEXT = "te1.text_model.encoder.layers.0.mlp.fc1"


def base_tensors(dtype, seed=0):
    draw = torch.Generator().manual_seed(seed)
    tensors = {
        key: (0.05 * torch.randn(shape, generator=draw)).to(dtype) for key, shape in SHAPES.items()
    }
    tensors["betas"] = torch.linspace(0.0009, 0.012, 1000)
    tensors[f"{CLIP}text_model.embeddings.position_ids"] = torch.arange(77)[None]
    return tensors


LAYERS = SD1.layers({key: tuple(t.shape) for key, t in base_tensors(torch.float32).items()})


def lora_tensors(layer_ids, seed, rank=8, alpha=4.0, size=0.03):
    """Return by layer id a LoRA whose delta is about as large as a trained one's, in float32."""
    draw = torch.Generator().manual_seed(seed)
    network = {}
    for layer_id in layer_ids:
        out, inputs, *kernel = LAYERS[layer_id].shape
        ones = [1 for _ in kernel]
        network[layer_id] = {
            "lora_down.weight": size * torch.randn(rank, inputs, *kernel, generator=draw),
            "lora_up.weight": size * torch.randn(out, rank, *ones, generator=draw),
            "alpha": torch.tensor(alpha),
        }
    return network
