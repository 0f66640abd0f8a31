"""Plans: what each phase holds."""

from dataclasses import replace

import pytest
import torch

from lib_lora.errors import UsageError
from lib_lora.host import HostFlags
from lib_lora.train.memory import GB, LABEL, Machine, machine_here, plan
from lib_lora.train.memory_parts import denoiser_bytes, facts_of, published_facts
from lib_lora.train.optim import Optimizer, flatten
from tests.train.asked import asked_config

PHASES = ["pictures", "captions", "training", "saving", "sampling"]
ROOMY = Machine(80 * GB, 80 * GB, HostFlags(device="cuda"))


def config_of(size=1024, **sections):
    sections = {"data": {"size": size}, "network": {"rank": 16}, "run": {}, **sections}
    sections = {"schedule": {"batch": 1}, **sections}
    return asked_config("base", "pictures", "out.safetensors", **sections)


def phase(planned, name):
    return next(each for each in planned.phases if each.name == name)


def test_every_phase_is_the_sum_of_its_parts_and_the_label_is_honest():
    config = config_of(samples={"prompts": "a fox"})
    planned = plan(config, published_facts("sdxl"), ROOMY)
    assert [each.name for each in planned.phases] == PHASES
    assert all(each.bytes == sum(each.parts.values()) for each in planned.phases)
    assert planned.label == LABEL == "estimate, not yet calibrated on a GPU"
    assert planned.peak.name == "training"
    assert planned.fits


def test_the_parts_of_a_training_step():
    """16 bytes for each trained number of AdamW: values, gradients and two moments in fp32 (Loshchilov and Hutter, 2019)."""
    facts = published_facts("sd1")
    parts = phase(plan(config_of(512, run={"precision": "bf16"}), facts, ROOMY), "training").parts
    trained = 16 * 423_936  # rank 16 on 192 layers
    assert parts["network"] + parts["gradients"] + parts["optimizer"] == 16 * trained
    assert parts["weights"] == 2 * facts.numbers("unet")
    eight = config_of(512, run={"precision": "bf16"}, optimizer={"type": "adamw8bit"})
    assert phase(plan(eight, facts, ROOMY), "training").parts["optimizer"] < 2.1 * trained


@pytest.mark.parametrize("type_", ["adamw", "lion", "prodigy"])
def test_the_state_of_an_optimizer_is_what_it_keeps(type_):
    config = config_of(512, optimizer={"type": type_, "unet_rate": 1.0})
    told = phase(plan(config, published_facts("sd1"), ROOMY), "training").parts["optimizer"]
    tensors = [torch.ones(5, 7).requires_grad_(True)]
    optimizer = Optimizer([flatten("unet", 1.0, tensors)], config.optimizer, config.schedule)
    tensors[0].square().sum().backward()
    optimizer.step(0)
    kept = [value for key, value in optimizer.state().items() if key.startswith("unet.")][1:]
    bytes_per_number = sum(value.numel() * value.element_size() for value in kept) / 35
    assert told == bytes_per_number * 16 * 423_936  # rank 16 on 192 layers


def test_published_forecasts_of_8_gb_for_sdxl():
    """kohya's documentation tells of SDXL in 8 GB: gradient checkpointing, cached latents and text, a low rank."""
    run = {"precision": "bf16", "checkpointing": True}
    planned = plan(config_of(network={"rank": 4}, run=run), published_facts("sdxl"), ROOMY)
    assert 6.0 < phase(planned, "training").bytes / GB < 8.0


def test_eight_bit_storage_halves_the_blocks():
    facts = published_facts("sdxl")
    half, eight = (
        denoiser_bytes(config_of(run={"precision": "bf16", "storage": storage}), facts)
        for storage in ("same", "fp8")
    )
    assert half == 2 * facts.numbers("unet")
    assert 0.5 < eight / half < 0.52


def test_samples_are_planned_where_there_are_prompts():
    facts = published_facts("sd1")
    config = config_of(512, samples={"prompts": "a fox", "size": 768})
    assert [each.name for each in plan(config_of(512), facts, ROOMY).phases] == PHASES[:-1]
    parts = phase(plan(config, facts, ROOMY), "sampling").parts
    assert parts["activations"] == 6 * 128 * 768**2 * 4
    tiled = config_of(512, samples={"prompts": "a fox", "size": 768}, run={"vae_tiling": True})
    assert phase(plan(tiled, facts, ROOMY), "sampling").parts["activations"] == 6 * 128 * 512**2 * 4


def test_small_pictures_go_through_the_autoencoder_together_or_one_by_one():
    """Four pictures of 256 x 256 have the pixels of one of 512 x 512."""
    facts = published_facts("sd1")
    whole, together, single = (
        phase(plan(config_of(size, run={"vae_slicing": slicing}), facts, ROOMY), "pictures").parts
        for size, slicing in ((512, False), (256, False), (256, True))
    )
    assert together == whole
    assert 4 * single["activations"] == whole["activations"]


def test_a_trained_text_encoder_stays():
    facts = published_facts("sd1")
    both = plan(config_of(512, network={"text_encoder": True}), facts, ROOMY)
    one = plan(config_of(512), facts, ROOMY)
    more = phase(both, "training").parts["weights"] - phase(one, "training").parts["weights"]
    assert more == 4 * facts.numbers("te1")


def test_a_cpu_holds_the_whole_model_while_it_encodes():
    facts = published_facts("sd1")
    cpu = replace(ROOMY, flags=HostFlags(device="cpu"))
    parts = phase(plan(config_of(512), facts, cpu), "pictures").parts
    assert parts["weights"] == 4 * sum(facts.numbers(name) for name in ("unet", "te1", "vae"))


def test_the_machine_here():
    machine = machine_here(HostFlags(memory="lowvram", half=False, device="cpu"))
    assert machine.flags == HostFlags(memory="lowvram", half=False, device="cpu")
    assert 0 < machine.free_bytes <= machine.total_bytes
    assert machine_here().flags.device == ("cuda" if torch.cuda.is_available() else "cpu")
    given_back = machine_here(HostFlags(device="cpu"), machine.total_bytes)
    assert given_back.free_bytes == machine.total_bytes


def test_the_facts_of_a_file_are_its_headers(tiny):
    facts = facts_of(tiny.checkpoint)
    unet = sum(tensor.numel() for tensor in tiny.modules()["unet"].state_dict().values())
    assert facts.numbers("unet") == unet
    assert facts.encoders == ("te1",)
    planned = plan(config_of(64), facts, ROOMY)
    assert planned.fits


def test_a_family_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'sdxl'"):
        published_facts("sdx")
