"""One formula: a network computes the same in training, applied live and baked into the weights."""

from dataclasses import replace

import pytest
import torch

from lib_lora.apply.session import LoadedNetwork, Session
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.networks.compose import compose
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.grammar import parse_prompt
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.config_learning import TRAINABLE_TYPES, NetworkConfig
from tests.tiny import tiny_checkpoint, tiny_components

CONFIG = NetworkConfig(rank=4, alpha=2.0, conv_rank=3, text_encoder=True)
DRAW = torch.Generator().manual_seed(7)
LATENTS = torch.randn(1, 4, 8, 8, generator=DRAW, dtype=torch.float64)
TOKENS = torch.randint(49407, (1, 12), generator=DRAW)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return open_checkpoint(tiny_checkpoint(tmp_path_factory.mktemp("base")))


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def fresh_modules(dtype):
    modules = {name: module.to(dtype) for name, module in tiny_components().items()}
    return {name: module.requires_grad_(False) for name, module in modules.items()}


def outputs(modules, before_unet=lambda: None):
    """Return what text encoder and UNet compute, the UNet from fixed words of the right width."""
    dtype = next(modules["unet"].parameters()).dtype
    words = modules["te1"](TOKENS).last_hidden_state
    before_unet()
    fixed = torch.linspace(-1, 1, words.numel(), dtype=dtype).view_as(words)
    noise = modules["unet"](LATENTS.to(dtype), 500, fixed).sample
    return {"te1": words.detach(), "unet": noise.detach()}


def trained(base, modules, dtype, choices):
    """Return a network after training, still attached: every tensor moved, so that none is zero."""
    config = replace(CONFIG, **choices)
    attached = attach(
        config,
        selected_layers(base.family, base.layers, config),
        live_modules(modules, base.layers),
        seed=3,
        dtype=dtype,
    )
    with torch.no_grad():
        for tensors in attached.tensors.values():
            for suffix in sorted(attached.type.trainable & tensors.keys()):
                moved = torch.randn(tensors[suffix].shape, generator=DRAW, dtype=torch.float64)
                tensors[suffix].add_(0.3 * moved)
    return attached


def saved(base, attached, folder):
    """Return the layers of the network as they are read from a file of it."""
    file = folder / "network.safetensors"
    tensors = {
        id_: {suffix: tensor.detach() for suffix, tensor in parts.items()}
        for id_, parts in attached.tensors.items()
    }
    write_network(file, tensors, base.layers, base.family.components)
    network = read_network(file, base.layers, base.family.components)
    assert (network.unmatched, network.layers.keys()) == ((), tensors.keys())
    return network.layers


def live(base, modules, networks):
    (use,) = parse_prompt("<lora:x:1>").uses
    with Session([(use, LoadedNetwork("x", dict(networks)))]) as session:
        session.open(live_modules(modules, base.layers))
        session.begin_pass(Clock.from_sigmas([2.0, 1.0]))
        session.encode()
        return outputs(modules, before_unet=lambda: session.step(2.0))


def baked(base, dtype, networks, strength):
    modules = fresh_modules(dtype)
    layers = live_modules(modules, base.layers)
    for id_, network in networks.items():
        change = compose(layers[id_].weight, [(network, strength)])
        layers[id_].weight += change.weight
        if change.bias is not None:
            layers[id_].bias += change.bias
    return outputs(modules)


def distance(a, b):
    return max(
        float((a[name] - b[name]).abs().max() / (b[name].max() - b[name].min())) for name in a
    )


DORA = {"type": "lora", "dora": True}
CASES = [({"type": type_}, torch.float64) for type_ in TRAINABLE_TYPES]
CASES += [({"type": type_}, torch.float32) for type_ in ("lora", "loha", "lokr")]
CASES += [(DORA, torch.float64)]


@pytest.mark.parametrize(("choices", "dtype"), CASES)
def test_training_live_and_baked_agree(base, dtype, choices, tmp_path):
    tolerance = TOLERANCES[dtype]
    modules = fresh_modules(dtype)
    plain = outputs(modules)
    attached = trained(base, modules, dtype, choices)
    in_training = outputs(modules)
    attached.detach()
    networks = saved(base, attached, tmp_path)
    assert {id_.split(".")[0] for id_ in networks} == {"unet", "te1"}
    applied = live(base, modules, networks)
    merged = baked(base, dtype, networks, 1.0)
    assert distance(in_training, merged) <= tolerance
    assert distance(applied, merged) <= tolerance
    assert distance(applied, in_training) <= tolerance
    # The controls: without the network it differs clearly; with the strength off by 5 % it fails.
    assert distance(plain, merged) > 1e-2
    assert distance(applied, baked(base, dtype, networks, 1.05)) > 1e-3
    assert distance(outputs(modules), plain) == 0.0
