"""The model as it would be with networks in its weights: their deltas added in float64, rounded once, by arithmetic of the tests' own."""

from collections import OrderedDict
from contextlib import contextmanager
from functools import cache

import networks
import torch
from modules import sd_models

DOWN, UP = "lora_down.weight", "lora_up.weight"
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
def with_merged(model, strengths):
    """Add strength * delta of each network by name to weights and biases of the model; afterwards they are what they were, bit by bit."""
    changes = {}
    for name, strength in strengths.items():
        for tensor, delta in deltas(model, name):
            changes.setdefault(tensor, []).append((strength, delta))
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
    """Return pairs of a parameter of the model and what a network at strength 1 adds to it, in float64."""
    disk = networks.available_networks[name]
    products = of_factors(disk.filename)
    if products is None:
        return of_the_host(name, disk)
    weights = {key: model.network_layer_mapping[key].weight for key in products}
    return [(weights[key], in_shape(product, weights[key])) for key, product in products.items()]


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
        key = networks.convert_diffusers_name_to_compvis(layer, False)
        products[key] = up.flatten(1) @ down.flatten(1) * (alpha / len(down))
    return products


def of_the_host(name, disk):
    """Return what the WebUI's own formulas make of a network of any type."""
    network = networks.load_network(name, disk)
    network.te_multiplier = network.unet_multiplier = 1.0
    pairs = []
    for module in network.modules.values():
        layer = module.sd_module
        weight, bias = module.calc_updown(layer.weight.detach().clone())
        pairs.append((layer.weight, weight.double()))
        if bias is not None:
            pairs.append((layer.bias, bias.double()))
    return pairs
