"""The stand-in with a model, some network files and the extension loaded as the host loads it."""

import runpy
from pathlib import Path

import networks
import torch
from modules import processing, script_callbacks, sd_unet, shared
from modules.processing import StableDiffusionProcessing
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from webui_model import Model

from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import write_tensors
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import CreateOptions, LayerNetwork, LayerShape
from lib_lora.networks.lora import LORA

REGISTRATION = Path(__file__).parents[2] / "scripts" / "lora_loom.py"
UNET_LAYERS = ("unet.conv_in", "unet.down_blocks.0.attentions.0.proj_in", "unet.conv_out")
TE_LAYER = "te1.text_model.encoder.layers.0.mlp.fc1"


class Host:
    """folder: where its files go."""

    def __init__(self, folder):
        self.folder = folder
        self.forget()
        self.model = self.load_model("base")
        self.networks = {name: self._network(name, seed) for seed, name in enumerate("ab", 1)}

    def forget(self):
        """Put back what the host's modules hold for the whole process."""
        script_callbacks.registered.clear()
        script_callbacks.swallowed.clear()
        networks.on_disk.clear()
        networks.list_available_networks()
        networks.loaded_networks.clear()
        networks.brought_up_to_date.clear()
        shared.opts, sd_unet.current_unet = shared.Options(), None
        for name in ("cached_c", "cached_uc", "cached_hr_c"):
            setattr(StableDiffusionProcessing, name, [None, None])

    def load_model(self, name, seed=0):
        """Make a model the host's loaded one."""
        file = self.folder / f"{name}.safetensors"
        shared.sd_model = Model(file, seed)
        write_tensors(file, shared.sd_model.checkpoint(), {})
        return shared.sd_model

    def load_extension(self):
        runpy.run_path(str(REGISTRATION))

    def unload_extension(self):
        script_callbacks.call("script_unloaded")
        script_callbacks.registered.clear()

    def picture(self, *prompts, **settings):
        return StableDiffusionProcessing(*prompts, **settings)

    def draw(self, *prompts, **settings):
        """Return the latents of the first batch."""
        return self.make(self.picture(*prompts, **settings))[0]

    def make(self, picture):
        return picture.draw()

    def sampler(self, name):
        return (CompVisSampler if name == "DDIM" else KDiffusionSampler)(name)

    def break_unet(self):
        self.model.model.diffusion_model.broken = True

    def encode_nothing(self):
        return processing.get_empty_cond(self.model)

    def baked(self, **strengths):
        """Return a twin of the model whose UNet and text encoder hold networks, a pair of strengths each: `a=(unet, te)`."""
        twin = Model(self.folder / "base.safetensors")
        if not strengths:
            return twin
        modules = {
            **dict(zip(UNET_LAYERS, unet_modules(twin), strict=True)),
            TE_LAYER: twin.cond_stage_model.wrapped.transformer.text_model.encoder.layers[
                0
            ].mlp.fc1,
        }
        for layer_id, module in modules.items():
            pairs = [
                (self.networks[name][layer_id], pair[layer_id == TE_LAYER])
                for name, pair in strengths.items()
            ]
            module.weight += compose(module.weight, pairs).weight
        return twin

    def _network(self, name, seed):
        """Write a LoRA for every layer that computes, and return its layers."""
        checkpoint = open_checkpoint(self.folder / "base.safetensors")
        draw = torch.Generator().manual_seed(seed)
        layers = {}
        for layer_id in (*UNET_LAYERS, TE_LAYER):
            shape = LayerShape(checkpoint.layers[layer_id].shape)
            tensors = LORA.create(shape, CreateOptions(2, 2.0, torch.float64), draw)
            up = tensors["lora_up.weight"]
            tensors["lora_up.weight"] = torch.randn(up.shape, generator=draw, dtype=torch.float64)
            layers[layer_id] = LayerNetwork(LORA, tensors)
        file = self.folder / f"{name}.safetensors"
        tensors = {layer_id: network.tensors for layer_id, network in layers.items()}
        write_network(file, tensors, checkpoint.layers, checkpoint.family.components)
        networks.on_disk[name] = file
        return layers


def unet_modules(model):
    unet = model.model.diffusion_model
    return unet.input_blocks[0][0], unet.input_blocks[1][1].proj_in, unet.out[2]
