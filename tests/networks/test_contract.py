"""What every network type owes its callers, whatever its formula."""

import copy

import pytest
import torch
from torch import nn

from lib_lora.apply.branch import Branch
from lib_lora.apply.strengths import Strengths
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import (
    LayerNetwork,
    apply_weight,
    misfit,
    shapes_of,
)
from tests.halves import HALVES
from tests.networks.variants import (
    BASED,
    DORA,
    PLAIN,
    TUCKER,
    VARIANTS,
    a_module,
    an_input,
    cases,
    fresh,
    shape_of,
    trained,
)
from tests.recorder import Recorder

STRENGTHS = (-0.5, 0.0, 0.7, 1.0)
every_case = pytest.mark.parametrize(("variant", "layer"), cases(VARIANTS))


def delta_of(kind, tensors, module):
    return kind.delta(tensors, module.weight, shape_of(module)).weight


def outputs(kind, tensors, module, x):
    """Return what `output` adds: of the tensors as they are, and of what `prepare` makes of them."""
    y = module(x)
    yield kind.output(tensors, x, module, y)
    if kind.prepare is not None:
        prepared = kind.prepare(tensors, module.weight, shape_of(module))
        yield kind.output(prepared, x, module, y)


def baked(module, network, strength):
    twin = copy.deepcopy(module)
    twin.weight += compose(module.weight, [(network, strength)]).weight
    return twin


def spread(tensor):
    return float(tensor.max() - tensor.min())


@every_case
def test_a_fresh_network_is_the_identity(variant, layer):
    module = a_module(layer)
    kind, tensors = fresh(variant, module)
    assert torch.equal(delta_of(kind, tensors, module), torch.zeros_like(module.weight))


@every_case
def test_its_own_shapes_fit(variant, layer):
    module = a_module(layer)
    kind, tensors = fresh(variant, module)
    assert misfit(kind, shapes_of(tensors), tuple(module.weight.shape)) is None
    assert misfit(kind, shapes_of(tensors), (21, 13, *module.weight.shape[2:])) is not None
    if "norm" not in kind.kinds:
        assert "does not apply" in misfit(kind, shapes_of(tensors), (12,))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@every_case
def test_output_equals_the_delta_baked_into_the_weight(variant, layer, dtype, limit):
    module = a_module(layer)
    kind, tensors = trained(variant, module)
    module = module.to(dtype)
    tensors = {s: t if s == "alpha" else t.to(dtype) for s, t in tensors.items()}
    x = an_input(module)
    for strength in STRENGTHS:
        expected = baked(module, LayerNetwork(kind, tensors), strength)(x)
        for added in outputs(kind, tensors, module, x):
            live = module(x) + strength * added
            assert float((live - expected).abs().max()) <= limit * spread(expected)
            # The control: a strength off by 5 % is told apart.
            off = live + 0.05 * (strength or 1.0) * added
            assert float((off - expected).abs().max()) > 5e-4 * spread(expected)


@every_case
def test_output_differentiates_as_delta_does(variant, layer):
    module = a_module(layer)
    kind, tensors = trained(variant, module)
    leaves = {s: tensors[s].clone().requires_grad_() for s in kind.trainable & tensors.keys()}
    x = an_input(module)
    given = {**tensors, **leaves}
    through_output = kind.output(given, x, module, module(x)).square().sum()
    through_delta = apply_weight(module, x, delta_of(kind, given, module)).square().sum()
    found = torch.autograd.grad(through_output, list(leaves.values()))
    expected = torch.autograd.grad(through_delta, list(leaves.values()))
    for suffix, one, two in zip(leaves, found, expected, strict=True):
        # Only the diagonals of OFT's blocks, a quarter of the smallest, play no part.
        assert float((one == 0).double().mean()) <= (0.25 if suffix == "oft_blocks" else 0), suffix
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9, msg=suffix)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("variant", "layer"), cases(VARIANTS))
def test_half_precision_errs_by_some_roundings(variant, layer, dtype):
    module = a_module(layer).to(dtype)
    kind, tensors = trained(variant, a_module(layer))
    halves = {s: t if s == "alpha" else t.to(dtype) for s, t in tensors.items()}
    exactly = {s: t.double() for s, t in halves.items()}
    x = an_input(module)
    live = module(x) + list(outputs(kind, halves, module, x))[-1]
    assert live.dtype == dtype
    expected = baked(copy.deepcopy(module).double(), LayerNetwork(kind, exactly), 1.0)(x.double())
    limit = 8 * torch.finfo(dtype).eps * spread(expected)
    assert float((live.double() - expected).abs().max()) <= limit


@pytest.mark.parametrize(("variant", "layer"), cases(PLAIN | TUCKER))
def test_low_rank_equals_delta(variant, layer):
    module = a_module(layer)
    kind, tensors = trained(variant, module)
    factors = kind.low_rank and kind.low_rank(tensors, shape_of(module))
    assert (factors is not None) == (variant.startswith("lo") and variant in LOW_RANK)
    if factors is not None:
        product = (factors.up @ factors.down.flatten(1)).reshape(module.weight.shape)
        torch.testing.assert_close(product, delta_of(kind, tensors, module), rtol=1e-12, atol=1e-12)


LOW_RANK = ("lora", "loha", "lora-tucker", "loha-tucker")


@pytest.mark.parametrize(("variant", "layer"), cases(("lora", "lokr-whole", "dora-lora")))
def test_composition_is_order_free_and_linear(variant, layer):
    module = a_module(layer)
    one = LayerNetwork(*trained(variant, module))
    two = LayerNetwork(*fresh(variant, module))
    base = module.weight
    forth = compose(base, [(one, 0.7), (two, -0.5), (one, 0.3)]).weight
    back = compose(base, [(one, 0.3), (two, -0.5), (one, 0.7)]).weight
    torch.testing.assert_close(forth, back, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(forth, compose(base, [(one, 1.0)]).weight, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("variant", PLAIN | TUCKER)
def test_a_missing_alpha_means_a_scale_of_one(variant):
    module = a_module("conv3x3")
    kind, tensors = trained(variant, module)
    rank = kind.rank(shapes_of(tensors))
    without = {s: t for s, t in tensors.items() if s != "alpha"}
    scale = 1.0 if rank is None else float(tensors["alpha"]) / rank
    assert (rank is None) == (variant == "lokr-whole")
    torch.testing.assert_close(
        delta_of(kind, without, module) * scale, delta_of(kind, tensors, module), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("variant", "layer"), cases(("lora", "lokr", "lokr-whole", "lokr-factors"))
)
def test_extract_reproduces_a_delta_of_known_rank(variant, layer):
    module = a_module(layer)
    kind, tensors = trained(variant, module)
    delta = delta_of(kind, tensors, module)
    rank = 4 if variant in ("lora", "lokr-whole") else 1
    again = delta_of(kind, kind.extract(delta, rank), module)
    assert float((again - delta).norm() / delta.norm()) <= 1e-12
    # The control: a rank less, or a delta that is none of this type's, is not reproduced.
    other = torch.randn(delta.shape, generator=torch.Generator().manual_seed(4)).double()
    poorer = delta_of(
        kind, kind.extract(delta if variant == "lora" else other, rank - 1 or 1), module
    )
    assert float((poorer - (delta if variant == "lora" else other)).norm() / delta.norm()) > 1e-3


LARGE = {
    "linear": lambda: (nn.Linear(96, 80), (1, 3, 96)),
    "conv3x3": lambda: (nn.Conv2d(24, 32, 3, padding=1), (1, 24, 5, 5)),
}


@pytest.mark.parametrize("layer", LARGE)
@pytest.mark.parametrize("variant", PLAIN | DORA | BASED)
def test_a_live_step_creates_no_tensor_of_the_weights_size(variant, layer):
    torch.manual_seed(0)
    module, size = LARGE[layer]()
    module = module.double().requires_grad_(False)
    network = LayerNetwork(*trained(variant, module))
    strengths = Strengths(1)
    branch = Branch(module, [(0, network)], strengths)
    strengths.set([0.7])
    x = torch.randn(size, dtype=torch.float64)
    y = module(x)
    branch.add(module, x, y)  # the first step brings the tensors to the device and the dtype
    with Recorder() as live:
        for strength in (0.2, 0.9):
            strengths.set([strength])
            branch.add(module, x, y)
    assert live.results
    assert max(size for _, size in live.results) < module.weight.numel()
    # The control: the recorder sees the weight that a merge makes.
    with Recorder() as merge:
        compose(module.weight, [(network, 1.0)])
    assert max(size for _, size in merge.results) >= module.weight.numel()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_type_tells_whether_its_delta_depends_on_the_base(variant):
    module = a_module("conv3x3")
    kind, tensors = trained(variant, module)
    deltas = [
        kind.delta(tensors, base, shape_of(module)).weight
        for base in (module.weight, module.weight.flip(0))
    ]
    assert torch.equal(*deltas) is not kind.reads_base
