"""What the WebUI gets to load: the embedded base model, two others made from it, and networks of every type."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from lib_lora.demo.webui import sidecar
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import write_tensors
from lib_lora.networks.boft import BOFT
from lib_lora.networks.contract import CreateOptions, LayerShape, NetworkType
from lib_lora.networks.dora import with_dora
from lib_lora.networks.full import FULL
from lib_lora.networks.glora import GLORA
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import LORA
from lib_lora.networks.norm import NORM
from lib_lora.networks.oft import OFT
from tests.networks.variants import in_form

BASE = Path(__file__).parents[2] / "lib_lora" / "demo" / "base.safetensors"
CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
WORD = "loomword"
OPTIONS = CreateOptions(rank=4, alpha=2.0)
COMPUTED = (
    "unet.conv_in",
    "unet.conv_out",
    "unet.down_blocks",
    "unet.mid_block",
    "unet.up_blocks",
    "unet.time_embedding",
)
WORDS = ("q_proj", "v_proj", "fc1", "fc2")


@dataclass(frozen=True)
class Network:
    """move: how far its tensors are from those of a new one, whose delta is 0; kinds: the layers on which the WebUI knows the type."""

    type: NetworkType
    move: float
    seed: int = 1
    options: CreateOptions = OPTIONS
    variant: str = ""
    component: str = "unet"
    kinds: tuple[str, ...] = ("linear", "conv", "norm")


# Where the WebUI's own formula is the library's: its DoRA norms columns, its GLoRA has the old names and no scale.
TYPES = {
    "loha": Network(LOHA, 0.03, options=replace(OPTIONS, rank=2)),
    "lokr": Network(LOKR, 0.1),
    "tucker": Network(LORA, 0.05, options=replace(OPTIONS, tucker=True)),
    "dora": Network(with_dora(LORA), 0.05, options=replace(OPTIONS, per_input=True)),
    "ia3": Network(IA3, 0.1, kinds=("linear",)),
    "oft": Network(OFT, 0.03),
    "boft": Network(BOFT, 0.02),
    "glora": Network(
        GLORA, 0.05, options=replace(OPTIONS, alpha=4.0), variant="glora-old", kinds=("linear",)
    ),
    "full": Network(FULL, 0.01),
    "norm": Network(NORM, 0.1),
}
NETWORKS = {
    "one": Network(LORA, 0.05),
    "two": Network(LORA, 0.05, seed=2),
    "words": Network(LORA, 0.2, component="te1"),
    **TYPES,
}


def make_models(folder):
    """Fill a folder with checkpoints and networks, and with the configuration for checkpoints that have none beside them."""
    checkpoints, networks = folder / "checkpoints", folder / "networks"
    checkpoints.mkdir()
    networks.mkdir()
    (folder / "sd1.yaml").write_text(sidecar(), encoding="utf-8")
    (checkpoints / "base.safetensors").symlink_to(BASE)
    # A model with a configuration of its own becomes another object in the WebUI, one without is loaded into the old.
    (checkpoints / "own.yaml").write_text(sidecar(), encoding="utf-8")
    for seed, name in enumerate(("other", "own"), 1):
        write_tensors(checkpoints / f"{name}.safetensors", perturbed(load_file(BASE), seed), {})
    write_inpainting(checkpoints)
    for name, network in NETWORKS.items():
        write_made(networks / f"{name}.safetensors", network)
    write_bundled(networks)


def write_inpainting(folder):
    """Write the base model with a mask and a masked picture beside its latents."""
    tensors = load_file(BASE)
    first = tensors[CONV_IN]
    more = 0.1 * torch.randn(len(first), 5, *first.shape[2:], generator=torch.Generator())
    tensors[CONV_IN] = torch.cat([first, more], 1)
    write_tensors(folder / "inpainting.safetensors", tensors, {})
    text = sidecar().replace("ddpm.LatentDiffusion", "ddpm.LatentInpaintDiffusion")
    text = text.replace("conditioning_key: crossattn", "conditioning_key: hybrid")
    text = text.replace("use_ema: false", "finetune_keys: null")
    text = text.replace("in_channels: 4", "in_channels: 9")
    (folder / "inpainting.yaml").write_text(text, encoding="utf-8")


def write_bundled(folder):
    """Write the first network once more, with a word of two vectors in its file."""
    tensors = load_file(folder / "one.safetensors")
    word = 0.5 * torch.randn(2, 64, generator=torch.Generator().manual_seed(9))
    tensors[f"bundle_emb.{WORD}.string_to_param.*"] = word
    write_tensors(folder / "bundled.safetensors", tensors, {})


def perturbed(tensors, seed):
    """Move every weight of the UNet and the text encoder by a fiftieth of what they are."""
    draw = torch.Generator().manual_seed(seed)
    return {
        key: tensor * (1 + 0.02 * torch.randn(tensor.shape, generator=draw).to(tensor))
        if key.startswith(("model.", "cond_stage_model.")) and tensor.is_floating_point()
        else tensor
        for key, tensor in tensors.items()
    }


def write_made(file, network):
    checkpoint = open_checkpoint(BASE)
    weights = load_file(BASE)
    draw = torch.Generator().manual_seed(network.seed)
    tensors = {}
    for layer_id, layer in checkpoint.layers.items():
        if takes(network, layer_id, layer):
            weight = weights[layer.weight.key].float().reshape(layer.shape)
            tensors[layer_id] = made(network, weight, draw)
    write_network(file, tensors, checkpoint.layers, checkpoint.family.components)


def takes(network, layer_id, layer):
    shape = LayerShape(layer.shape)
    if shape.kind not in network.type.kinds.intersection(network.kinds):
        return False
    if network.component == "te1":
        return layer.component == "te1" and layer.path.endswith(WORDS)
    return layer_id.startswith(COMPUTED)


def made(network, weight, draw):
    """Return the tensors of one layer, moved at random from where training starts."""
    kind = network.type
    options = replace(network.options, base=weight)
    tensors = kind.create(LayerShape(tuple(weight.shape)), options, draw)
    if network.variant:
        tensors = in_form(network.variant, tensors, weight)
    for suffix in sorted(kind.trainable & tensors.keys()):
        moved = torch.randn(tensors[suffix].shape, generator=draw)
        tensors[suffix] = tensors[suffix] + network.move * moved
    return tensors
