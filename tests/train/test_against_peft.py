"""Training against a loop of its own making: PEFT's adapter on diffusers' UNet, diffusers' noise schedule, AdamW by hand.

The reference shares with ours the base weights, the network's first values, and the draws (rows, timesteps, noise); nothing of its
forward pass, objective, clipping or optimizer is ours.
"""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig

from lib_lora.networks.contract import LayerShape
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.loop import Loop, Material
from lib_lora.train.objective import OBJECTIVES, Draws
from lib_lora.train.training import make_optimizer
from tests.tiny import CONFIG
from tests.train.asked import asked_config

STEPS = 10
# An alteration shows after fewer steps than equality has to hold for.
CONTROL_STEPS = 4
OPTIMIZER = {"unet_rate": 4e-3, "weight_decay": 0.5, "clip": 1.0}
NETWORK = {"rank": 4, "conv_rank": 4, "alpha": 2.0}
# The relative difference allowed in losses and in ||dW_ours - dW_reference|| / ||dW_reference||, as issue 2 item 5 sets them.
LIMITS = {torch.float64: (1e-10, 1e-8), torch.float32: (1e-5, 1e-3)}


@dataclass(frozen=True)
class Batch:
    """A fixed batch, so that the loss can fall in ten steps: two pictures, one of them with little noise and one with much."""

    latents: torch.Tensor
    contexts: torch.Tensor
    times: torch.Tensor
    noise: torch.Tensor


@dataclass(frozen=True)
class Trained:
    """The loss of each step, and the delta of each layer by its path, after a number of steps."""

    losses: list[float]
    deltas: dict[int, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Reference:
    """What the reference does; a control alters one of these."""

    scale: float = NETWORK["alpha"] / NETWORK["rank"]
    bias_correction: bool = True
    weight_decay: float = OPTIMIZER["weight_decay"]
    gamma: float = 5.0


@pytest.fixture(scope="module")
def batch(contexts):
    draw = torch.Generator().manual_seed(5)
    return Batch(
        latents=torch.randn((2, 4, 16, 8), generator=draw),
        contexts=contexts[1:],
        times=torch.tensor([60, 700]),
        noise=torch.randn((2, 4, 16, 8), generator=draw),
    )


@pytest.fixture(scope="module")
def unet():
    """A random UNet of the tiny model's shapes in which every layer has a gradient.

    With 32 groups a group norm of 32 channels takes away whatever a resnet's time layer adds, and its exact gradient is zero: what is
    left of it is rounding. For the same reason the latents are so large that the middle of the UNet has more than one token.
    """
    torch.manual_seed(0)
    config = UNet2DConditionModel.load_config(CONFIG / "unet")
    return UNet2DConditionModel.from_config({**config, "norm_num_groups": 8})


def ours(tiny, unet, batch, dtype):
    """Train through the library and also return the first values of each layer."""
    config = asked_config(
        "a", "b", "c.safetensors", optimizer=OPTIMIZER, network=NETWORK, schedule={"steps": STEPS}
    )
    unet = copy.deepcopy(unet).to(dtype)
    layers = selected_layers(tiny.checkpoint.family, tiny.checkpoint.layers, config.network)
    modules = live_modules({"unet": unet}, layers)
    attached = attach(config.network, layers, modules, 0, dtype)
    start = {
        id_: {s: t.detach().clone() for s, t in parts.items()}
        for id_, parts in attached.tensors.items()
    }
    contexts = torch.cat([torch.zeros_like(batch.contexts[:1]), batch.contexts]).to(dtype)
    material = Material(
        denoise=lambda noisy, times, _, rows: unet(noisy, times, contexts[rows]).sample,
        latents=batch.latents.to(dtype),
        captions=torch.tensor([[1], [2]]),
        buckets=[torch.arange(2)],
        objective=OBJECTIVES["epsilon"],
        gamma=config.loss.min_snr_gamma,
        device=torch.device("cpu"),
        compute=dtype,
    )
    loop = Loop(material, make_optimizer(config, attached), config)
    draws = Draws(torch.tensor([0, 1]), batch.times, batch.noise, torch.zeros(2, dtype=torch.bool))
    found = Trained([], {})
    for step in range(STEPS):
        found.losses.append(float(loop.update(step, [draws])[0]))
        if step + 1 in (CONTROL_STEPS, STEPS):
            found.deltas[step + 1] = deltas_of(attached, modules, layers)
    return found, {layers[id_].path: parts for id_, parts in start.items()}


def deltas_of(attached, modules, layers):
    """Return our delta of each layer by its path."""
    formula = attached.type.delta
    return {
        layer.path: formula(
            attached.tensors[id_], modules[id_].weight, LayerShape(layer.shape)
        ).weight.detach()
        for id_, layer in layers.items()
    }


def reference(unet, batch, dtype, start, steps=STEPS, how=Reference()):
    """Train the same network for so many of the ten steps with PEFT, diffusers and a hand-written AdamW."""
    unet = copy.deepcopy(unet).to(dtype)
    unet.add_adapter(LoraConfig(r=4, lora_alpha=4 * how.scale, target_modules=list(start)))
    adapted = {path: unet.get_submodule(path) for path in start}
    with torch.no_grad():
        for path, layer in adapted.items():
            layer.lora_A["default"].weight.copy_(start[path]["lora_down.weight"])
            layer.lora_B["default"].weight.copy_(start[path]["lora_up.weight"])
    parameters = [p for p in unet.parameters() if p.requires_grad]
    assert {p.dtype for p in parameters} == {dtype}
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    # diffusers keeps its schedule in float32; the formula is the same in numpy's float64.
    levels = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    scheduler.alphas_cumprod = torch.from_numpy(levels).to(dtype)
    snr = (levels / (1 - levels))[batch.times.numpy()]
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    losses = []
    latents, noise = batch.latents.to(dtype), batch.noise.to(dtype)
    contexts = batch.contexts.to(dtype)
    for step in range(steps):
        noisy = scheduler.add_noise(latents, noise, batch.times)
        predicted = unet(noisy, batch.times, contexts).sample
        loss = torch.nn.functional.mse_loss(predicted, noise, reduction="none").mean(dim=(1, 2, 3))
        if how.gamma:
            loss = loss * torch.from_numpy(np.minimum(snr, how.gamma) / snr).to(dtype)
        loss = loss.mean()
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(loss.item())
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        share = min(1.0, OPTIMIZER["clip"] / (norm + 1e-6))
        rate = OPTIMIZER["unet_rate"] * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        with torch.no_grad():
            for p, g, mean, square in zip(parameters, gradients, means, squares, strict=True):
                adamw(p, g * share, mean, square, step + 1, rate, how)
    deltas = {path: layer.get_delta_weight("default").detach() for path, layer in adapted.items()}
    return Trained(losses, {steps: deltas})


def adamw(p, g, mean, square, count, rate, how):
    """Take one step of Loshchilov and Hutter's algorithm 2, decay times the rate as PyTorch documents it."""
    mean.copy_(0.9 * mean + 0.1 * g)
    square.copy_(0.999 * square + 0.001 * g**2)
    correct = how.bias_correction
    unbiased = mean / (1 - 0.9**count) if correct else mean
    spread = square / (1 - 0.999**count) if correct else square
    p.copy_(p - rate * (unbiased / (spread.sqrt() + 1e-8) + how.weight_decay * p))


def differences(found, expected):
    """Return the largest relative difference of the losses and of the deltas, after as many steps as the reference took."""
    ((steps, deltas),) = expected.deltas.items()
    losses = zip(found.losses[:steps], expected.losses, strict=True)
    pairs = [(found.deltas[steps][path], delta) for path, delta in deltas.items()]
    assert len(pairs) == len(found.deltas[steps]) == 278
    return (
        max(abs(ours - theirs) / abs(theirs) for ours, theirs in losses),
        max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs),
    )


@pytest.fixture(scope="module", params=LIMITS, ids=str)
def trained(request, tiny, unet, batch):
    """Our training in one precision, what the reference starts from, and the limits."""
    return request.param, *ours(tiny, unet, batch, request.param), LIMITS[request.param]


def test_equals_the_reference(unet, batch, trained):
    dtype, found, start, limits = trained
    expected = reference(unet, batch, dtype, start)
    assert expected.losses[-1] <= 0.9 * expected.losses[0]
    losses, deltas = differences(found, expected)
    assert losses <= limits[0]
    assert deltas <= limits[1]


@pytest.mark.parametrize(
    "altered",
    [
        Reference(scale=0.95 * Reference.scale),
        Reference(bias_correction=False),
        Reference(weight_decay=0.0),
        Reference(gamma=0.0),
    ],
    ids=["alpha over rank", "bias correction", "weight decay", "min-SNR"],
)
def test_an_altered_reference_is_told_apart(unet, batch, trained, altered):
    dtype, found, start, limits = trained
    expected = reference(unet, batch, dtype, start, CONTROL_STEPS, altered)
    losses, deltas = differences(found, expected)
    assert losses > limits[0]
    assert deltas > limits[1]
