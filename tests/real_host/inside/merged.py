"""The model as it would be with networks in its weights: their deltas added in float64, rounded once, by arithmetic of the tests' own."""

import re
from collections import OrderedDict
from contextlib import contextmanager
from functools import cache

import networks
import torch
from modules import sd_models, shared

DOWN, UP = "lora_down.weight", "lora_up.weight"
XL = {
    "lora_unet": "diffusion_model",
    "lora_te1_text_model": "0_transformer_text_model",
    "lora_te2_text_model": "1_model",
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@contextmanager
def without_hooks(model):
    """Let no module of the model call a hook."""
    kept = [(module, name, getattr(module, name)) for module in model.modules() for name in HOOKS]
    for module, name, _ in kept:
        setattr(module, name, OrderedDict())
    try:
        yield
    finally:
        for module, name, hooks in kept:
            setattr(module, name, hooks)


@contextmanager
def with_merged(model, strengths, factors):
    """Add strength * delta of each network by name to weights and biases of the model; afterwards they are what they were, bit by bit.

    factors: by network pairs of a pattern and what more the layers of such names are multiplied by, of which the last counts.
    """
    changes = {}
    for name, strength in strengths.items():
        for layer, tensor, delta in deltas(model, name):
            own = [one for pattern, one in factors.get(name, ()) if re.match(pattern, layer)]
            changes.setdefault(tensor, []).append((strength * [1, *own][-1], delta))
    kept = {tensor: tensor.detach().clone() for tensor in changes}
    try:
        for tensor, parts in changes.items():
            added = sum(strength * delta for strength, delta in parts)
            tensor.data.copy_(tensor.detach().double() + added)
        yield
    finally:
        for tensor, before in kept.items():
            tensor.data.copy_(before)


def deltas(model, name):
    """Return the WebUI's name of each layer, a parameter of it and what a network at strength 1 adds to that, in float64."""
    disk = networks.available_networks[name]
    products = of_factors(disk.filename)
    if products is None:
        return of_the_host(name, disk)
    modules = model.network_layer_mapping
    return [(key, *in_place(modules, key, product)) for key, product in products.items()]


def in_place(modules, key, product):
    """Return the parameter that a layer is in, and its product in that shape: of OpenCLIP's attention q, k and v are one."""
    if key in modules:
        weight = modules[key].weight
        return weight, in_shape(product, weight)
    attention, _, part = key.removesuffix("_proj").rpartition("_")
    weight = modules[attention].in_proj_weight
    added = torch.zeros_like(weight, dtype=product.dtype)
    added.chunk(3)["qkv".index(part)].copy_(product)
    return weight, added


def in_shape(product, weight):
    """Return a matrix in the shape of a weight; a kernel may see a mask behind the channels of the latent, which nothing is added to."""
    if product.numel() == weight.numel():
        return product.reshape(weight.shape)
    kernel = product.reshape(len(weight), -1, *weight.shape[2:])
    added = torch.zeros_like(weight, dtype=product.dtype)
    added[:, : kernel.shape[1]] = kernel
    return added


@cache
def of_factors(file):
    """Return up @ down * alpha / rank by the WebUI's name of the layer; `None` for a file that holds anything else."""
    tensors = sd_models.read_state_dict(file)
    layers = {key.partition(".")[0] for key in tensors}
    if tensors.keys() != {f"{layer}.{part}" for layer in layers for part in (UP, DOWN, "alpha")}:
        return None
    products = {}
    for layer in sorted(layers):
        up, down, alpha = (tensors[f"{layer}.{part}"].double() for part in (UP, DOWN, "alpha"))
        products[name_of(layer)] = up.flatten(1) @ down.flatten(1) * (alpha / len(down))
    return products


def name_of(layer):
    """Return the WebUI's name of a layer in a file; XL's files have names of their own."""
    if not shared.sd_model.is_sdxl:
        return networks.convert_diffusers_name_to_compvis(layer, shared.sd_model.is_sd2)
    for theirs, own in XL.items():
        if layer.startswith(theirs):
            return networks.convert_diffusers_name_to_compvis(layer, False).replace(theirs, own)
    raise KeyError(layer)


def of_the_host(name, disk):
    """Return what the WebUI's own formulas make of a network of any type."""
    network = networks.load_network(name, disk)
    network.te_multiplier = network.unet_multiplier = 1.0
    found = []
    for key, module in network.modules.items():
        layer = module.sd_module
        weight, bias = module.calc_updown(layer.weight.detach().clone())
        found.append((key, layer.weight, weight.double()))
        if bias is not None:
            found.append((key, layer.bias, bias.double()))
    return found
