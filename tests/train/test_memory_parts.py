"""What a plan says of weights and kept activations, against a count of what autograd saves in a real forward and backward pass."""

import re

import pytest
import torch

from lib_lora.families.costs import COSTS
from lib_lora.networks.compose import NETWORK_TYPES
from lib_lora.train.attach import attach, count_trained, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.memory_parts import (
    BESIDE,
    activations,
    component_bytes,
    published_facts,
    trained_numbers,
)
from tests.train import small_models
from tests.train.asked import asked_config
from tests.train.saved import count_saved

FAMILIES = ("sd1", "sd2", "sdxl", "sd3", "sd35_medium", "sd35_large")
WITHIN = 0.05
SIDE, BATCH = 16, 2
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def config_of(size=8 * SIDE, **sections):
    sections = {"schedule": {"batch": BATCH}, "data": {"size": size}, **sections}
    return asked_config("base", "pictures", "out.safetensors", **sections)


def measured(module, facts, config):
    """Return what one pass of a denoiser saves, with a fresh network on it, by module."""
    dtype = PRECISIONS[config.run.precision]
    torch.nn.Module.to(module, dtype).requires_grad_(False).eval()
    layers = selected_layers(facts.family, facts.layers, config.network)
    attached = attach(config.network, layers, live_modules({facts.denoiser: module}, layers), 0)
    given = small_models.inputs(module, config.data.size // 8, config.schedule.batch, dtype)
    beside = [each for tensors in attached.tensors.values() for each in tensors.values()]
    saved = count_saved(module, beside, lambda: module(**given)[0].float().square().mean())
    attached.detach()
    return saved


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp32") for name in FAMILIES),
        *((name, "bf16") for name in ("sd1", "sd3", "sd35_medium", "sd35_large")),
    ],
)
def test_kept_activations_are_those_that_autograd_saves(name, precision):
    module, facts = getattr(small_models, name)()
    config = config_of(run={"precision": precision})
    saved = measured(module, facts, config)
    told = activations(config, facts)
    assert told.whole == pytest.approx(saved.total(), rel=WITHIN)
    block = COSTS[facts.denoiser].block
    by_block = {}
    for path, numbers in saved.items():
        if found := re.match(block, path):
            by_block[found[0]] = by_block.get(found[0], 0) + numbers
    outside = saved.total() - sum(by_block.values())
    assert told.largest_block == pytest.approx(max(by_block.values()), rel=0.2)
    assert outside < told.entries < told.whole / 2


@pytest.mark.parametrize("network", [{"conv_rank": 4}, {"rank": 32}])
def test_the_network_beside_the_layers_counts(network):
    module, facts = small_models.sd1()
    config = config_of(network=network)
    saved = measured(module, facts, config).total()
    assert activations(config, facts).whole == pytest.approx(saved, rel=WITHIN)
    assert activations(config_of(), facts).whole != pytest.approx(saved, rel=WITHIN / 2)


@pytest.mark.parametrize("type_", ["loha", "lokr", "boft", "norm"])
def test_networks_of_other_types_keep_more(type_):
    module, facts = small_models.sd1()
    config = config_of(network={"type": type_}, schedule={"batch": 1})
    saved = measured(module, facts, config).total()
    allowed = 0.4 if type_ == "norm" else 0.1  # norms leave most of what linear layers keep
    assert activations(config, facts).whole == pytest.approx(saved, rel=allowed)


def test_dora_keeps_more():
    module, facts = small_models.sd1()
    config = config_of(network={"dora": True}, schedule={"batch": 1})
    saved = measured(module, facts, config).total()
    assert activations(config, facts).whole == pytest.approx(saved, rel=0.1)


def test_kept_activations_grow_with_batch_and_pixels():
    _, facts = small_models.sd1()
    one, two = (activations(config_of(schedule={"batch": n}), facts).whole for n in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.02)
    wide = activations(config_of(size=16 * SIDE, schedule={"batch": 1}), facts).whole
    assert wide == pytest.approx(4 * one, rel=0.25)  # what belongs to the text does not grow


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_the_modules_own(name):
    module, facts = getattr(small_models, name)()
    numbers = sum(each.numel() for each in module.state_dict().values())
    assert facts.numbers(facts.denoiser) == numbers
    assert component_bytes(facts, [facts.denoiser], "fp16") == 2 * numbers


def test_published_numbers():
    """Parameters, and parameters of a LoRA for each rank on kohya's layers, in millions: counted on meta tensors of diffusers."""
    published = {"sd1": (859.5, 0.4239), "sdxl": (2567.5, 2.6598)}
    for name, (numbers, per_rank) in published.items():
        facts = published_facts(name)
        assert facts.numbers("unet") / 1e6 == pytest.approx(numbers, abs=0.05)
        trained = trained_numbers(config_of(network={"rank": 16}).network, facts)
        assert trained["unet"] / 16e6 == pytest.approx(per_rank, abs=5e-5)


def test_every_type_that_can_be_trained_is_known():
    assert set(BESIDE) == {kind.id for kind in NETWORK_TYPES if kind.create}


@pytest.mark.parametrize("type_", ["lora", "loha", "lokr", "ia3", "full"])
def test_trained_numbers_are_those_of_a_fresh_network(type_):
    module, facts = small_models.sd1()
    config = config_of(network={"type": type_, "conv_rank": 2})
    layers = selected_layers(facts.family, facts.layers, config.network)
    attached = attach(config.network, layers, live_modules({"unet": module}, layers), 0)
    fresh = sum(each.numel() for each in attached.trainable("unet"))
    attached.detach()
    assert trained_numbers(config.network, facts) == {"unet": fresh}
    assert count_trained(config.network, (8, 8)) > 0
