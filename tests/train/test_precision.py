"""Eight-bit weights: how near they are, that the forward and the backward pass are those of the rounded weights, and what is kept."""

import copy

import pytest
import torch
from torch import nn

from lib_lora.networks.contract import apply_weight
from lib_lora.train.precision import SMALL, SmallConv2d, SmallLinear, make_scaler, store_small
from tests.train.saved import count_saved
from tests.train.scaling import SCALES_ON_CPU


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(128, 6))
        return nn.Sequential(*layers).requires_grad_(False)


def everything(path, shape):
    return True


def rounded(module):
    """Return a copy whose weights are what the eight bits hold, as the standard says: 3 bits after the leading one."""
    other = copy.deepcopy(module)
    for layer in (other[0], other[2]):
        weight = layer.weight.data.double()
        largest = weight.abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.dim() - 1))
        scaled = weight / largest * 448.0
        step = torch.exp2(torch.floor(torch.log2(scaled.abs())).clamp(min=-6) - 3)
        layer.weight.data = (torch.round(scaled / step) * step / 448.0 * largest).float()
    return other


def small_copy(module):
    other = copy.deepcopy(module)
    store_small(other, everything)
    return other


def picture():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).requires_grad_(True)


def run(module):
    x = picture()
    y = module(x)
    y.square().sum().backward()
    return y.detach(), x.grad


def test_values_and_gradients_are_those_of_the_rounded_weights():
    y, gradient = run(small_copy(model()))
    expected, expected_gradient = run(rounded(model()))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    # The control: the weights as they were give something else.
    plain, plain_gradient = run(model())
    assert (y - plain).abs().max() > 1e-3
    assert (gradient - plain_gradient).abs().max() > 1e-3


def test_weights_are_near_and_a_quarter_of_the_size():
    before, after = model(), small_copy(model())
    assert (type(after[0]), type(after[2])) == (SmallConv2d, SmallLinear)
    for n in (0, 2):
        assert after[n].small.dtype == SMALL
        change = (after[n].weight - before[n].weight).norm() / before[n].weight.norm()
        assert 1e-3 < change < 0.04  # half a step of 2^-3 at most
    kept = {name for name, _ in after.named_parameters()}
    assert kept == {"0.bias", "2.bias"}


def test_no_copy_of_a_weight_is_kept_for_the_backward_pass():
    wide = nn.Sequential(nn.Linear(8, 4096), nn.Linear(4096, 8)).requires_grad_(False)
    x = torch.randn(1, 8, requires_grad=True)
    small = copy.deepcopy(wide)
    store_small(small, everything)
    tensors = (x, *small.buffers())
    assert count_saved(small, tensors, lambda: small(x).sum()).total() == 0


def test_only_what_is_wanted_is_stored_small():
    module = model()
    store_small(module, lambda path, shape: len(shape) == 2)
    assert (type(module[0]), type(module[2])) == (nn.Conv2d, SmallLinear)


@pytest.mark.parametrize("index", [0, 2])
def test_a_network_finds_the_weight_and_the_operation(index):
    before, after = model()[index], small_copy(model())[index]
    weight = after.get_parameter("weight")
    assert weight.shape == before.weight.shape
    assert weight.dtype == before.weight.dtype
    x = torch.randn(2, 3, 8, 8) if index == 0 else torch.randn(2, 128)
    other = torch.ones_like(before.weight)
    assert torch.equal(apply_weight(after, x, other), apply_weight(before, x, other))


def test_a_row_of_zeros_stays_zero():
    module = model()
    module[2].weight.data[1] = 0
    assert small_copy(module)[2].weight[1].abs().max() == 0


@SCALES_ON_CPU
def test_only_fp16_scales_the_loss():
    cpu = torch.device("cpu")
    assert make_scaler("fp32", cpu) is None
    assert make_scaler("bf16", cpu) is None
    assert float(make_scaler("fp16", cpu).scale(torch.ones(()))) > 1000
