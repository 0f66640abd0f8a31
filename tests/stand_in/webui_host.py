"""The stand-in with a model, some network files and the extension loaded as the host loads it."""

import runpy
from pathlib import Path

import networks
import torch
from modules import script_callbacks, sd_hijack, sd_unet, shared
from modules.processing import StableDiffusionProcessing, get_empty_cond
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from modules.textual_inversion.textual_inversion import EmbeddingDatabase
from webui_model import Model

from lib_lora.families.table import WHOLE
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.formats.original import layer_view
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import (
    CreateOptions,
    LayerNetwork,
    LayerShape,
    misfit,
    shapes_of,
)
from lib_lora.networks.lora import LORA
from lib_lora.networks.narrow import narrowed

REGISTRATION = Path(__file__).parents[2] / "scripts" / "lora_loom.py"
LAYERS = (
    *("unet.conv_in", "unet.down_blocks.0.attentions.0.proj_in", "unet.conv_out"),
    *(f"te1.text_model.encoder.layers.0.self_attn.{part}_proj" for part in ("q", "k", "v", "out")),
    "te1.text_model.encoder.layers.0.mlp.fc1",
)
"""Of these a network has those that its model has."""


class Host:
    """folder: where its files go; kind: of its models, as `Model` takes it."""

    def __init__(self, folder, kind="sd1"):
        self.folder, self.kind = folder, kind
        self.forget()
        self.models = []
        self.model = self.load_model("base")
        self.networks = {}
        for seed, name in enumerate("ab", 1):
            self.add_network(name, seed)

    def forget(self):
        """Put back what the host's modules hold for the whole process."""
        script_callbacks.registered.clear()
        script_callbacks.swallowed.clear()
        networks.on_disk.clear()
        networks.deltas.clear()
        networks.list_available_networks()
        networks.loaded_networks.clear()
        sd_hijack.model_hijack.comments.clear()
        sd_hijack.model_hijack.embedding_db = EmbeddingDatabase()
        shared.opts, sd_unet.current_unet = shared.Options(), None
        for name in ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc"):
            setattr(StableDiffusionProcessing, name, [None, None])

    def load_model(self, name, seed=0, kind=None):
        """Make a model the host's loaded one, and encode its empty text as the host does."""
        file = self.folder / f"{name}.safetensors"
        model = shared.sd_model = Model(file, seed, kind or self.kind)
        write_tensors(file, model.checkpoint(), {})
        networks.assign_network_names_to_compvis_modules(model)
        get_empty_cond(model)
        self.models.append(model)
        return model

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
        return get_empty_cond(self.model)

    def baked(self, model="base", **strengths):
        """Return a twin of a model whose UNet and text encoder hold networks, a pair of strengths each: `a=(unet, te)`.

        The Lora extension does not know it.
        """
        checkpoint = open_checkpoint(self.folder / f"{model}.safetensors")
        twin = Model(checkpoint.path, kind=self.kind)
        twin.load_state_dict(twin_state(twin, checkpoint.path))
        tensors = twin.checkpoint()  # these are the twin's own
        for layer_id in LAYERS:
            pairs = [
                (self.networks[name][layer_id], pair[layer_id.startswith("te")])
                for name, pair in strengths.items()
                if layer_id in self.networks[name]
            ]
            if pairs and layer_id in checkpoint.layers:
                place = checkpoint.layers[layer_id].weight
                weight = layer_view(tensors[place.key], place.part)
                weight += compose(weight.clone(), pairs).weight
        return twin

    def add_network(self, name, seed, kind=LORA, channels=None, layers=LAYERS, **options):
        """Write a network of a type for those of these layers that there are.

        channels: how many input channels the first layer has where it was trained.
        """
        checkpoint = open_checkpoint(Path(shared.sd_model.sd_checkpoint_info.filename))
        tensors, draw = shared.sd_model.checkpoint(), torch.Generator().manual_seed(seed)
        found = {}
        for layer_id in (layer_id for layer_id in layers if layer_id in checkpoint.layers):
            place = checkpoint.layers[layer_id].weight
            weight = layer_view(tensors[place.key], place.part)
            if layer_id == "unet.conv_in":
                weight = weight[:, :channels]
            asked = CreateOptions(2, 2.0, torch.float64, base=weight, **options)
            own = kind.create(LayerShape(tuple(weight.shape)), asked, draw)
            for suffix in sorted(kind.trainable & own.keys()):
                moved = torch.randn(own[suffix].shape, generator=draw, dtype=torch.float64)
                own[suffix] = own[suffix] + 0.4 * moved
            found[layer_id] = LayerNetwork(kind, own)
            self._let_the_host_know(name, place, found[layer_id], weight)
        self.networks[name] = {
            layer_id: self._on_all_channels(network, checkpoint.layers[layer_id].shape)
            for layer_id, network in found.items()
        }
        file = networks.on_disk[name] = self.folder / f"{name}.safetensors"
        written = {layer_id: network.tensors for layer_id, network in found.items()}
        write_network(file, written, checkpoint.layers, checkpoint.family.components)
        networks.list_available_networks()

    def _on_all_channels(self, network, shape):
        fits = misfit(network.type, shapes_of(network.tensors), shape) is None
        return network if fits else LayerNetwork(narrowed(network.type, 4), network.tensors)

    def _let_the_host_know(self, name, place, network, weight):
        """Tell the Lora extension what a network adds to a module; it knows it of whole weights."""
        if place.part == WHOLE:
            module = place.key.removesuffix(".weight")
            module = module.replace("cond_stage_model.", "cond_stage_model.wrapped.")
            delta = compose(weight, [(network, 1.0)]).weight
            networks.deltas.setdefault(name, {})[module] = delta


def evaluations(host):
    """Return what every UNet was given and what it answered, once for every evaluation, and forget it."""
    return [evaluation for model in host.models for evaluation in take(model)]


def take(model):
    seen = list(model.model.diffusion_model.seen)
    model.model.diffusion_model.seen.clear()
    return seen


def answers(model, evaluation):
    """Return what another model answers to the same input."""
    return model.apply_model(*evaluation[:3])


def agree(one, other):
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9)


def twin_state(twin, file):
    """Return the tensors of a file by the names that a model has for them."""
    with TensorReader(file) as reader:
        return {
            name: reader.read_to_copy(name.replace(".wrapped.", ".")) for name in twin.state_dict()
        }


def unet_modules(model):
    unet = model.model.diffusion_model
    return unet.input_blocks[0][0], unet.input_blocks[1][1].proj_in, unet.out[2]
