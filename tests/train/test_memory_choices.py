"""Choices: what a host's switches and free memory decide, and the sentences that say so."""

from dataclasses import replace

import pytest

from lib_lora.host import HostFlags
from lib_lora.train.memory import GB, Machine
from lib_lora.train.memory_choices import choose
from lib_lora.train.memory_parts import published_facts
from tests.train.asked import asked_config

CUDA = HostFlags(device="cuda")
ROOMY = Machine(80 * GB, 80 * GB, CUDA)


def config_of(size=1024, **sections):
    sections = {"data": {"size": size}, "network": {"rank": 16}, "run": {}, **sections}
    sections = {"schedule": {"batch": 1}, **sections}
    return asked_config("base", "pictures", "out.safetensors", **sections)


def settings(planned):
    return {choice.setting: choice.value for choice in planned.choices}


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (ROOMY, {"run.precision": "bf16"}),
        (replace(ROOMY, bf16=False), {"run.precision": "fp16", "run.vae_precision": "fp32"}),
        (replace(ROOMY, flags=replace(CUDA, half=False)), {"run.precision": "fp32"}),
        (
            replace(ROOMY, flags=replace(CUDA, half_vae=False)),
            {"run.precision": "bf16", "run.vae_precision": "fp32"},
        ),
        (
            replace(ROOMY, flags=HostFlags(device="cpu")),
            {"run.precision": "fp32", "run.device": "cpu"},
        ),
        (
            replace(ROOMY, flags=replace(CUDA, attention="xformers"), xformers=True),
            {"run.precision": "bf16", "run.attention": "xformers"},
        ),
        (replace(ROOMY, flags=replace(CUDA, attention="xformers")), {"run.precision": "bf16"}),
        (
            replace(ROOMY, flags=replace(CUDA, memory="medvram")),
            {"run.precision": "bf16", "run.checkpointing": True},
        ),
    ],
)
def test_the_hosts_switches_choose(machine, chosen):
    config, planned = choose(config_of(512), published_facts("sd1"), machine)
    assert settings(planned) == chosen
    for setting, value in chosen.items():
        section, _, key = setting.partition(".")
        assert getattr(getattr(config, section), key) == value
    assert all(choice.sentence for choice in planned.choices)


def test_lowvram_begins_with_everything():
    machine = replace(ROOMY, flags=replace(CUDA, memory="lowvram"), eight_bit=True)
    config, planned = choose(config_of(schedule={"batch": 4}), published_facts("sdxl"), machine)
    assert set(settings(planned)) == {
        *("run.precision", "run.checkpointing", "optimizer.type", "run.storage"),
        *("schedule.batch", "schedule.accumulate", "run.vae_tiling"),
    }
    assert (config.schedule.batch, config.schedule.accumulate) == (1, 4)


def test_savings_are_taken_until_it_fits_and_explained():
    facts = published_facts("sdxl")
    roomy, _ = choose(config_of(), facts, ROOMY)
    assert not roomy.run.checkpointing
    config, planned = choose(config_of(), facts, Machine(12 * GB, 12 * GB, CUDA))
    assert planned.fits
    assert config.run.checkpointing
    assert config.run.storage == "same"
    sentence = planned.choices[-1].sentence
    assert sentence == "gradient checkpointing: -6.3 GB, about +30 % time"
    small, planned = choose(config_of(), facts, Machine(7 * GB, 7 * GB, CUDA))
    assert planned.fits
    assert (small.run.checkpointing, small.run.storage) == (True, "fp8")


def test_what_cannot_fit_is_told():
    _, planned = choose(config_of(), published_facts("sdxl"), Machine(2 * GB, 2 * GB, CUDA))
    assert not planned.fits


def test_medvram_is_nothing_to_a_cpu():
    machine = replace(ROOMY, flags=HostFlags(memory="lowvram", device="cpu"))
    config, _ = choose(config_of(512), published_facts("sd1"), machine)
    assert not config.run.checkpointing


@pytest.mark.parametrize(("family", "begins"), [("sd1", False), ("sdxl", True)])
def test_medvram_sdxl_is_for_sdxl_alone(family, begins):
    machine = replace(ROOMY, flags=replace(CUDA, memory="medvram-sdxl"))
    config, _ = choose(config_of(512), published_facts(family), machine)
    assert config.run.checkpointing is begins


def test_t5_reads_on_the_cpu_where_it_has_no_room():
    """T5's encoder has 4.76 billion numbers: 8.9 GB in bf16. In 12 GB it finds room, in 8 GB SD3 Medium trains without it there."""
    config, facts = config_of(), published_facts("sd3")
    roomy, _ = choose(config, facts, Machine(12 * GB, 12 * GB, CUDA))
    assert roomy.run.text_device == "same"
    small, planned = choose(config, facts, Machine(8 * GB, 8 * GB, CUDA))
    assert small.run.text_device == "cpu"
    sentence = next(each for each in planned.choices if each.setting == "run.text_device").sentence
    assert sentence.startswith("the captions on the CPU: -")
    assert planned.fits
