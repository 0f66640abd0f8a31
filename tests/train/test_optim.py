"""The flat optimizer: the same steps as PyTorch's on single tensors, the rate's course, and a state that brings it all back."""

import math
import sys

import pytest
import torch
from lion_pytorch import Lion
from prodigyopt import Prodigy

from lib_lora.errors import UsageError
from lib_lora.train.config_learning import OptimizerConfig, ScheduleConfig
from lib_lora.train.optim import Optimizer, flatten, rate_share
from lib_lora.train.precision import make_scaler
from tests.train.scaling import SCALES_ON_CPU

SHAPES = [(3, 4), (5,), (2, 2, 3, 3)]
SCHEDULE = ScheduleConfig(steps=6, decay="constant")


def leaves(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).requires_grad_(True) for shape in SHAPES]


def loss_of(tensors):
    return sum((tensor - 1).pow(4).sum() for tensor in tensors)


def trained(tensors, optimizer, start, stop):
    for step in range(start, stop):
        loss_of(tensors).backward()
        optimizer.step(step)
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_equal_pytorchs_on_single_tensors(clip):
    tensors, others = leaves(), leaves()
    config = OptimizerConfig(unet_rate=0.01, weight_decay=0.1, clip=clip)
    found = trained(tensors, Optimizer([flatten("unet", 0.01, tensors)], config, SCHEDULE), 0, 5)
    adamw = torch.optim.AdamW(others, lr=0.01, weight_decay=0.1)
    for _ in range(5):
        adamw.zero_grad()
        loss_of(others).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(others, clip)
        adamw.step()
    for one, other in zip(found, others, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-6, atol=1e-7)


def test_groups_have_their_own_rates_and_one_clipping():
    tensors = leaves()
    groups = [flatten("unet", 0.0, tensors[:1]), flatten("te1", 0.1, tensors[1:])]
    start = [tensor.detach().clone() for tensor in tensors]
    found = trained(tensors, Optimizer(groups, OptimizerConfig(weight_decay=0.0), SCHEDULE), 0, 1)
    assert torch.equal(found[0], start[0])
    assert not torch.equal(found[1], start[1])


def test_the_rate_rises_over_the_warm_up_and_falls_along_a_cosine():
    schedule = ScheduleConfig(steps=12, warmup=4, decay="cosine")
    shares = [rate_share(step, schedule) for step in range(12)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4:] == [pytest.approx(0.5 * (1 + math.cos(math.pi * n / 8))) for n in range(8)]
    flat = ScheduleConfig(steps=12, warmup=2, decay="constant")
    assert [rate_share(step, flat) for step in (0, 1, 2, 11)] == [0.5, 1.0, 1.0, 1.0]


LIBRARIES = {"prodigy": Prodigy, "lion": Lion}


@pytest.mark.parametrize(("type_", "rate", "steps"), [("prodigy", 1.0, 60), ("lion", 0.01, 6)])
def test_other_optimizers_step_as_their_libraries_do_on_single_tensors(type_, rate, steps):
    tensors, others = leaves(), leaves()
    config = OptimizerConfig(type=type_, unet_rate=rate, weight_decay=0.1, clip=0.0)
    optimizer = Optimizer([flatten("unet", rate, tensors)], config, SCHEDULE)
    found = trained(tensors, optimizer, 0, steps)
    more = {"use_bias_correction": True, "safeguard_warmup": True} if type_ == "prodigy" else {}
    expected = LIBRARIES[type_](others, lr=rate, betas=(0.9, 0.999), weight_decay=0.1, **more)
    for _ in range(steps):
        expected.zero_grad()
        loss_of(others).backward()
        expected.step()
    for one, other, start in zip(found, others, leaves(), strict=True):
        moved = float((one - start).abs().max())
        assert float((one - other).abs().max()) < 0.01 * moved
        assert moved > 1e-4


def test_prodigy_goes_on_at_the_rate_it_had_found():
    config = OptimizerConfig(type="prodigy", unet_rate=1.0)
    tensors = leaves()
    optimizer = Optimizer([flatten("unet", 1.0, tensors)], config, SCHEDULE)
    trained(tensors, optimizer, 0, 60)
    state = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    assert float(state["found"][0]) > 1e-5  # it begins at 1e-6
    expected = trained(tensors, optimizer, 60, 63)
    others = leaves(seed=1)
    resumed = Optimizer([flatten("unet", 1.0, others)], config, SCHEDULE)
    resumed.restore({**state, "found": torch.tensor([1e-6, 1e-6, 0.0, 0.0])}, 60)
    assert not all(map(torch.equal, trained(others, resumed, 60, 63), expected))
    resumed.restore(state, 60)
    assert all(map(torch.equal, trained(others, resumed, 60, 63), expected))


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    groups = [flatten("unet", 1.0, leaves())]
    with pytest.raises(UsageError, match="needs the prodigyopt library"):
        Optimizer(groups, OptimizerConfig(type="prodigy"), SCHEDULE)


@pytest.mark.parametrize("type_", ["adamw", "prodigy", "lion"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_restored_state_goes_on_to_the_same_bits(type_, at):
    rate = 1.0 if type_ == "prodigy" else 0.01
    config = OptimizerConfig(type=type_, unet_rate=rate)
    tensors = leaves()
    optimizer = Optimizer([flatten("unet", rate, tensors)], config, SCHEDULE)
    trained(tensors, optimizer, 0, at)
    state = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    expected = trained(tensors, optimizer, at, 6)
    others = leaves(seed=1)
    resumed = Optimizer([flatten("unet", rate, others)], config, SCHEDULE)
    resumed.restore(state, at)
    assert all(map(torch.equal, trained(others, resumed, at, 6), expected))


def test_a_state_without_its_moments_goes_another_way():
    config = OptimizerConfig(unet_rate=0.01)
    tensors = leaves()
    optimizer = Optimizer([flatten("unet", 0.01, tensors)], config, SCHEDULE)
    trained(tensors, optimizer, 0, 3)
    state = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    expected = trained(tensors, optimizer, 3, 6)
    others = leaves(seed=1)
    fresh = Optimizer([flatten("unet", 0.01, others)], config, SCHEDULE)
    fresh.restore({**state, "unet.exp_avg": torch.zeros_like(state["unet.exp_avg"])}, 3)
    assert not all(map(torch.equal, trained(others, fresh, 3, 6), expected))


def scaled(tensors):
    groups = [flatten("unet", 0.01, tensors)]
    scaler = make_scaler("fp16", torch.device("cpu"))
    return Optimizer(groups, OptimizerConfig(), SCHEDULE, scaler)


@SCALES_ON_CPU
def test_a_scaled_loss_gives_the_same_steps():
    """The scale is a power of two, so that it changes no digit."""
    tensors, others = leaves(), leaves()
    plain = Optimizer([flatten("unet", 0.01, others)], OptimizerConfig(), SCHEDULE)
    optimizer = scaled(tensors)
    for step in range(4):
        optimizer.backward(loss_of(tensors))
        optimizer.step(step)
        plain.backward(loss_of(others))
        plain.step(step)
    assert all(map(torch.equal, tensors, others))


@SCALES_ON_CPU
def test_an_overflow_changes_nothing_but_the_scale():
    tensors = leaves()
    optimizer = scaled(tensors)
    optimizer.backward(loss_of(tensors))
    optimizer.step(0)
    before, scale = optimizer.groups[0].flat.clone(), optimizer.state()["scaler"].tolist()
    optimizer.backward(loss_of(tensors) * math.inf)
    optimizer.step(1)
    assert torch.equal(optimizer.groups[0].flat, before)
    after = optimizer.state()["scaler"].tolist()
    assert after[0] == scale[0] / 2
    assert after[2] == scale[2] == 1  # steps that were taken
    optimizer.backward(loss_of(tensors))
    optimizer.step(2)
    assert not torch.equal(optimizer.groups[0].flat, before)


@SCALES_ON_CPU
def test_a_restored_scale_goes_on_to_the_same_bits():
    tensors = leaves()
    optimizer = scaled(tensors)

    def go_on(tensors, optimizer):
        for step in range(2, 5):
            optimizer.backward(loss_of(tensors))
            optimizer.step(step)
        return optimizer.state()

    for step, factor in enumerate((1.0, math.inf)):
        optimizer.backward(loss_of(tensors) * factor)
        optimizer.step(step)
    state = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    expected = go_on(tensors, optimizer)
    others = leaves(seed=1)
    resumed = scaled(others)
    resumed.restore(state, 2)
    found = go_on(others, resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)


def test_eight_bits_need_a_cuda_device():
    config = OptimizerConfig(type="adamw8bit")
    with pytest.raises(
        UsageError, match=r"needs a CUDA device; found a CPU\. Accepted here: adamw"
    ):
        Optimizer([flatten("unet", 0.01, leaves())], config, SCHEDULE)
