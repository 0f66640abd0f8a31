"""How much memory a training will take, phase by phase, before anything of it is loaded.

What a program takes besides its tensors (libraries, a device's context, fragmentation) is an estimate. A GB is 2^30 bytes here, as
graphics cards are sold.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace

import psutil
import torch

from lib_lora.families.costs import DECODER_PEAK, ENCODER_PEAK
from lib_lora.host import HostFlags
from lib_lora.train.config import TrainConfig
from lib_lora.train.config_run import RunConfig
from lib_lora.train.memory_parts import (
    VALUE_BYTES,
    ModelFacts,
    activations,
    component_bytes,
    denoiser_bytes,
    trained_numbers,
)

GB = 2**30
LABEL = "estimate, not yet calibrated on a GPU"
TILE = 512
PIXELS_AT_ONCE = 512 * 512
SLACK_SHARE = 0.1
PROGRAM_BYTES: Mapping[str, float] = {"cuda": 0.8 * GB, "cpu": 0.6 * GB}
"""What Python, its libraries and the device's context take, by device."""
SLACK_BYTES: Mapping[str, float] = {"cuda": 0.5 * GB, "cpu": 0.0}
STATE_BYTES: Mapping[str, float] = {"adamw": 8.0, "adamw8bit": 2.03, "prodigy": 16.0, "lion": 4.0}
"""What an optimizer keeps of one number: both moments, in 8 bits with the scale that a block of 256 shares; Prodigy's also its first
value and the sum of its gradients; Lion's one moment."""
WIDEST = {"encoder": ("conv_in", ENCODER_PEAK), "decoder": ("conv_out", DECODER_PEAK)}
"""The layer of either side of the autoencoder that tells how wide it is where its pictures are largest."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device a training is planned for, in bytes, and the host's switches.

    flags: their device is the one that is planned for, "cuda" or "cpu"; bf16, eight_bit, xformers: whether it computes in bf16 and
    whether these libraries are there.
    """

    total_bytes: int
    free_bytes: int
    flags: HostFlags
    bf16: bool = True
    eight_bit: bool = False
    xformers: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """The most that a phase holds at once, in bytes, and what it is made of."""

    name: str
    bytes: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that was chosen for a machine, and the sentence that says why."""

    setting: str
    value: str | int | bool
    sentence: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The phases of a training in their order, against what is free on the device."""

    phases: tuple[Phase, ...]
    free_bytes: int
    label: str = LABEL
    choices: tuple[Choice, ...] = ()

    @property
    def peak(self) -> Phase:
        """Return the phase that needs most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def fits(self) -> bool:
        """Tell whether every phase finds room."""
        return self.peak.bytes <= self.free_bytes


def machine_here(flags: HostFlags | None = None, given_back: int = 0) -> Machine:
    """Return this machine's device as a run will find it, with a host's switches.

    given_back: the bytes that the host's own model holds there and gives back before the run starts.
    """
    cuda = torch.cuda.is_available()
    flags = flags or HostFlags(device="cuda" if cuda else "cpu")
    cuda = cuda and flags.device != "cpu"
    if cuda:
        free, total = torch.cuda.mem_get_info()
    else:
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    return Machine(
        total_bytes=total,
        free_bytes=min(total, free + given_back),
        flags=replace(flags, device="cuda" if cuda else "cpu"),
        bf16=cuda and torch.cuda.is_bf16_supported(),
        eight_bit=cuda and importlib.util.find_spec("bitsandbytes") is not None,
        xformers=cuda and importlib.util.find_spec("xformers") is not None,
    )


def pictures_at_once(size: int) -> int:
    """Return how many pictures of this width and height are given to the autoencoder at once."""
    return max(1, PIXELS_AT_ONCE // size**2)


def plan(config: TrainConfig, facts: ModelFacts, machine: Machine) -> MemoryPlan:
    """Predict the most that each phase of a training holds at once on a machine's device.

    Pictures and captions are encoded before the steps, one encoder after the other on the device, and the encoders are freed; on a
    CPU the whole base model lies in memory until then. While a sample is drawn, the steps' gradients and moments stay; without
    prompts there is no such phase.
    """
    network, kept = _network_parts(config, facts), activations(config, facts)
    step = kept.entries + kept.largest_block if config.run.checkpointing else kept.whole
    vae = component_bytes(facts, ("vae",), _vae_precision(config.run, facts))
    text = {n: component_bytes(facts, (n,), config.run.precision) for n in facts.encoders}
    elsewhere = config.run.text_device == "cpu"
    trained = trained_numbers(config.network, facts)
    spoken = max((text[n] for n in text if n in trained or not elsewhere), default=0)
    drawn = vae
    if machine.flags.device == "cpu":
        denoiser = component_bytes(facts, (facts.denoiser,), config.run.precision)
        spoken = drawn = vae + sum(text.values()) + denoiser
    encoded = _pixels(config, facts, "encoder", config.data.size)
    parts: dict[str, Mapping[str, int]] = {
        "pictures": {"weights": drawn, "activations": encoded},
        "captions": {"weights": spoken},
        "training": {**network, "activations": step},
        "saving": {**network, "copy": VALUE_BYTES[config.saving.dtype] * network["network"] // 4},
    }
    if len(config.samples.texts) > 1:
        decoded = _pixels(config, facts, "decoder", config.samples.size or config.data.size)
        weights = network["weights"] + vae
        parts["sampling"] = {**network, "weights": weights, "activations": decoded}
    phases = tuple(_phase(name, each, machine.flags.device) for name, each in parts.items())
    return MemoryPlan(phases, machine.free_bytes)


def _network_parts(config: TrainConfig, facts: ModelFacts) -> dict[str, int]:
    """Return what lies in memory from the first step to the last: the modules that are stepped through, and the network in fp32."""
    trained = trained_numbers(config.network, facts)
    encoders = [name for name in facts.encoders if name in trained]
    stepped = component_bytes(facts, encoders, config.run.precision)
    numbers = sum(trained.values())
    return {
        "weights": denoiser_bytes(config, facts) + stepped,
        "network": 4 * numbers,
        "gradients": 4 * numbers,
        "optimizer": round(STATE_BYTES[config.optimizer.type] * numbers),
    }


def _phase(name: str, parts: Mapping[str, int], device: str) -> Phase:
    tensors = sum(parts.values())
    slack = round(SLACK_BYTES[device] + SLACK_SHARE * tensors)
    whole = {"program": round(PROGRAM_BYTES[device]), **parts, "slack": slack}
    return Phase(name, sum(whole.values()), whole)


def _vae_precision(run: RunConfig, facts: ModelFacts) -> str:
    if run.vae_precision != "same":
        return run.vae_precision
    return "fp32" if facts.family.latent.wide else run.precision


def _pixels(config: TrainConfig, facts: ModelFacts, side: str, size: int) -> int:
    """Return what the largest layers of the "encoder" or the "decoder" hold of what goes through them at once.

    size: of a picture in pixels.
    """
    widest, peak = WIDEST[side]
    layer = facts.layers.get(f"vae.{side}.{widest}")
    if layer is None:
        return 0
    several = side == "encoder" and not config.run.vae_slicing
    pictures = pictures_at_once(size) if several else 1
    size = min(size, TILE) if config.run.vae_tiling else size
    numbers = peak * max(layer.shape[:2]) * pictures * size**2
    return round(numbers * VALUE_BYTES[_vae_precision(config.run, facts)])
