"""Which settings a machine decides: precision and attention by the host's switches, then savings until a training fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from lib_lora.families.costs import MEDVRAM_SDXL
from lib_lora.train.config import TrainConfig
from lib_lora.train.memory import GB, TILE, Choice, Machine, MemoryPlan, plan
from lib_lora.train.memory_parts import ModelFacts


@dataclass(frozen=True, slots=True)
class Saving:
    """A way to need less memory.

    phases: where it helps; price: what it costs, in words; settings: what it sets; begins: the host's memory switches that ask for
    it from the start; possible: whether it changes anything here.
    """

    name: str
    phases: tuple[str, ...]
    price: str
    settings: Callable[[TrainConfig], Mapping[str, str | int | bool]]
    begins: tuple[str, ...]
    possible: Callable[[TrainConfig, Machine], bool]


SAVINGS = (
    Saving(
        "gradient checkpointing",
        ("training",),
        "about +30 % time",
        lambda config: {"run.checkpointing": True},
        ("medvram", "lowvram"),
        lambda config, machine: not config.run.checkpointing,
    ),
    Saving(
        "8-bit AdamW",
        ("training", "saving", "sampling"),
        "its moments are rounded",
        lambda config: {"optimizer.type": "adamw8bit"},
        ("lowvram",),
        lambda config, machine: machine.eight_bit and config.optimizer.type == "adamw",
    ),
    Saving(
        "a batch of 1, accumulated",
        ("training",),
        "the mean over as many pictures, each on its own",
        lambda config: {
            "schedule.batch": 1,
            "schedule.accumulate": config.schedule.accumulate * config.schedule.batch,
        },
        ("lowvram",),
        lambda config, machine: config.schedule.batch > 1,
    ),
    Saving(
        "the base model in 8 bits",
        ("training", "saving", "sampling"),
        "its weights are rounded and brought back layer by layer",
        lambda config: {"run.storage": "fp8"},
        ("lowvram",),
        lambda config, machine: config.run.storage != "fp8",
    ),
    Saving(
        "the captions on the CPU",
        ("captions",),
        "seconds for each caption where the encoder is as large as T5",
        lambda config: {"run.text_device": "cpu"},
        (),
        lambda config, machine: config.run.text_device != "cpu",
    ),
    Saving(
        "the VAE one picture at a time",
        ("pictures",),
        "more passes to the same latents",
        lambda config: {"run.vae_slicing": True},
        ("medvram", "lowvram"),
        lambda config, machine: not config.run.vae_slicing,
    ),
    Saving(
        "the VAE in tiles",
        ("pictures", "sampling"),
        "with seams that are blended",
        lambda config: {"run.vae_tiling": True},
        ("lowvram",),
        lambda config, machine: not config.run.vae_tiling and config.data.size > TILE,
    ),
)
"""In the order of what they cost."""


def choose(
    config: TrainConfig, facts: ModelFacts, machine: Machine
) -> tuple[TrainConfig, MemoryPlan]:
    """Set what a machine decides: precision and attention by the host's switches, then savings until every phase finds room.

    `--medvram` begins with those that change no result, `--lowvram` with all that are possible. The plan tells each choice in a
    sentence, and whether it was enough.
    """
    choices: list[Choice] = []
    for setting, value, sentence in _by_switches(machine):
        config = _with(config, {setting: value})
        choices.append(Choice(setting, value, sentence))
    now = plan(config, facts, machine)
    for saving in SAVINGS:
        begins = _memory_switch(machine, facts) in saving.begins
        before = _most(now, saving.phases)
        if not saving.possible(config, machine) or not (begins or before > machine.free_bytes):
            continue
        settings = saving.settings(config)
        changed = _with(config, settings)
        after = plan(changed, facts, machine)
        gained = before - _most(after, saving.phases)
        if gained <= 0:
            continue
        config, now = changed, after
        sentence = f"{saving.name}: -{gained / GB:.1f} GB, {saving.price}"
        choices += [Choice(setting, value, sentence) for setting, value in settings.items()]
    return config, replace(now, choices=tuple(choices))


def _memory_switch(machine: Machine, facts: ModelFacts) -> str:
    """Return the switch that counts for a family: none does on a CPU, and `--medvram-sdxl` is `--medvram` for SDXL alone."""
    if machine.flags.device == "cpu":
        return "normal"
    if machine.flags.memory == "medvram-sdxl":
        return "medvram" if facts.family.id in MEDVRAM_SDXL else "normal"
    return machine.flags.memory


def _by_switches(machine: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield what the host's switches decide, whatever is free: a setting, its value and why."""
    if machine.flags.device == "cpu":
        yield (
            "run.device",
            "cpu",
            "on the CPU: there is no other device, or the host does not use it",
        )
        yield "run.precision", "fp32", "fp32: a CPU computes in it fastest, and to the same bytes"
    elif not machine.flags.half:
        yield (
            "run.precision",
            "fp32",
            "fp32: the host runs with --no-half, --precision full or --upcast-sampling",
        )
    elif machine.bf16:
        yield "run.precision", "bf16", "bf16: half of fp32's memory with the same range"
    else:
        yield (
            "run.precision",
            "fp16",
            "fp16 with a scaled loss: the device does not compute in bf16",
        )
        yield "run.vae_precision", "fp32", "the VAE in fp32: fp16 is too narrow for some"
    if machine.flags.device == "cuda" and not machine.flags.half_vae:
        yield "run.vae_precision", "fp32", "the VAE in fp32: the host runs with --no-half-vae"
    if machine.flags.attention == "xformers" and machine.xformers:
        yield "run.attention", "xformers", "xformers: the host runs with --xformers"


def _with(config: TrainConfig, settings: Mapping[str, str | int | bool]) -> TrainConfig:
    """Return a configuration with other values, by "section.key"."""
    for setting, value in settings.items():
        section, _, key = setting.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return config


def _most(planned: MemoryPlan, names: tuple[str, ...]) -> int:
    return max(phase.bytes for phase in planned.phases if phase.name in names)
