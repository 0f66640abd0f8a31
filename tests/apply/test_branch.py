"""The side branch against the weight that the composition law gives, and what it costs."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from lib_lora.apply.branch import Branch
from lib_lora.apply.hooks import attach
from lib_lora.apply.strengths import Strengths
from lib_lora.errors import UsageError
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import CreateOptions, LayerNetwork, LayerShape
from lib_lora.networks.dora import with_dora
from lib_lora.networks.full import FULL, SET_WEIGHT, with_bias
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import LORA
from lib_lora.networks.norm import NORM
from lib_lora.networks.sparse import with_remainder
from tests.halves import HALVES
from tests.networks import variants
from tests.recorder import Recorder

LAYERS = {
    "linear": lambda: nn.Linear(44, 52),
    "conv1x1": lambda: nn.Conv2d(44, 52, 1),
    "conv3x3": lambda: nn.Conv2d(44, 52, 3, padding=1),
    "strided": lambda: nn.Conv2d(44, 52, 3, stride=2, padding=1),
    "circular": lambda: nn.Conv2d(44, 52, 3, padding=1, padding_mode="circular"),
}
WITHOUT_LOW_RANK = replace(LORA, low_rank=None)


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double().requires_grad_(False)


def network(layer, rank, seed, kind=LORA):
    draw = torch.Generator().manual_seed(seed)
    shape = LayerShape(tuple(layer.weight.shape))
    options = CreateOptions(rank, alpha=2.0, dtype=torch.float64)
    tensors = LORA.create(shape, options, draw)
    up = tensors["lora_up.weight"]
    tensors["lora_up.weight"] = torch.randn(up.shape, generator=draw, dtype=torch.float64)
    return LayerNetwork(kind, tensors)


def an_input(layer, dtype=torch.float64):
    draw = torch.Generator().manual_seed(3)
    size = (2, 44, 7, 7) if isinstance(layer, nn.Conv2d) else (2, 7, 44)
    return torch.randn(size, generator=draw, dtype=torch.float64).to(dtype)


def branched(layer, uses, values):
    """Put a branch on a layer; `uses` are networks whose slot is their index."""
    strengths = Strengths(len(values))
    strengths_handle = attach(layer, Branch(layer, list(enumerate(uses)), strengths))
    strengths.set(values)
    return strengths, strengths_handle


def baked(layer, uses, values):
    twin = copy.deepcopy(layer)
    twin._forward_hooks.clear()
    twin.weight += compose(layer.weight, list(zip(uses, values, strict=True))).weight
    return twin


def distance(a, b):
    return float((a - b).abs().max() / (b.max() - b.min()))


@pytest.mark.parametrize("values", [(0.7, 0.0, -0.5), (0.0, 1.3, 0.0), (1.0, 1.0, 1.0)])
def test_the_branch_equals_the_baked_weight(layer, values):
    uses = [network(layer, 4, 1), network(layer, 8, 2), network(layer, 4, 3, WITHOUT_LOW_RANK)]
    x = an_input(layer)
    plain = layer(x)
    branched(layer, uses, values)
    expected = baked(layer, uses, values)(x)
    assert distance(layer(x), expected) <= 1e-12
    # The controls: without the networks, and with one strength off by 5 %, it differs clearly.
    assert distance(plain, expected) > 1e-2
    off = [1.05 * value for value in values]
    assert distance(layer(x), baked(layer, uses, off)(x)) > 1e-4


def moved(layer, kind, rank):
    """Return a network of any type with every tensor moved at random from where it starts."""
    draw = torch.Generator().manual_seed(4)
    options = CreateOptions(rank, alpha=2.0, dtype=torch.float64, base=layer.weight)
    tensors = kind.create(LayerShape(tuple(layer.weight.shape)), options, draw)
    for suffix in sorted(kind.trainable & tensors.keys()):
        step = torch.randn(tensors[suffix].shape, generator=draw, dtype=torch.float64)
        tensors[suffix] = tensors[suffix] + 0.2 * step
    return LayerNetwork(kind, tensors)


def test_types_with_and_without_a_low_rank_form_share_a_branch(layer):
    # rank 3 * 3 of LoHa is a product on every layer, rank 23 * 23 on none
    uses = [
        network(layer, 4, 1),
        moved(layer, LOHA, 3),
        moved(layer, LOHA, 23),
        moved(layer, LOKR, 2),
        moved(layer, with_dora(LORA), 4),
    ]
    values = (0.7, -0.5, 0.3, 1.0, 0.6)
    x = an_input(layer)
    branched(layer, uses, values)
    expected = baked(layer, uses, values)(x)
    assert distance(layer(x), expected) <= 1e-12
    # The controls: each network counts.
    for left_out in range(len(uses)):
        others = [0.0 if index == left_out else value for index, value in enumerate(values)]
        assert distance(layer(x), baked(layer, uses, others)(x)) > 1e-3


def test_nothing_acts_at_strength_zero(layer):
    x = an_input(layer)
    plain = layer(x)
    uses = [network(layer, 4, 1), network(layer, 4, 2, WITHOUT_LOW_RANK)]
    strengths, _ = branched(layer, uses, (0.5, 0.5))
    assert not torch.equal(layer(x), plain)
    strengths.clear()
    assert torch.equal(layer(x), plain)


def test_a_strength_may_change_between_evaluations(layer):
    x = an_input(layer)
    uses = [network(layer, 4, 1)]
    strengths, _ = branched(layer, uses, (1.0,))
    for value in (1.0, 0.25, -2.0):
        strengths.set([value])
        assert distance(layer(x), baked(layer, uses, [value])(x)) <= 1e-12


def test_the_padding_mode_is_read_when_the_layer_runs():
    torch.manual_seed(0)
    layer = LAYERS["conv3x3"]().double().requires_grad_(False)
    uses, x = [network(layer, 4, 1)], an_input(layer)
    branched(layer, uses, (1.0,))
    before = layer(x)
    layer.padding_mode = "circular"
    assert distance(layer(x), baked(layer, uses, (1.0,))(x)) <= 1e-12
    assert distance(before, layer(x)) > 1e-2


def test_the_sum_is_written_into_the_output_where_no_gradient_is_asked_for(layer):
    uses, x = [network(layer, 4, 1)], an_input(layer)
    strengths = Strengths(1)
    branch = Branch(layer, [(0, uses[0])], strengths)
    strengths.set([0.7])
    expected = baked(layer, uses, [0.7])(x)
    y = layer(x)
    assert branch.add(layer, x, y) is y
    assert distance(y, expected) <= 1e-12
    asked = layer(x.clone().requires_grad_())
    before = asked.detach().clone()
    assert distance(branch.add(layer, x, asked).detach(), expected) <= 1e-12
    assert torch.equal(asked.detach(), before)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "linear"], indirect=True)
def test_channels_may_lie_last(layer):
    uses, x = [network(layer, 4, 1), network(layer, 8, 2)], an_input(layer)
    expected = baked(layer, uses, (0.7, -0.5))(x)
    layer.to(memory_format=torch.channels_last)
    branched(layer, uses, (0.7, -0.5))
    found = layer(x.to(memory_format=torch.channels_last))
    assert not found.is_contiguous()
    assert distance(found, expected) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_branch_follows_the_dtype_of_the_input(layer, dtype):
    uses = [network(layer, 4, 1)]
    exact = baked(layer, uses, (0.7,))(an_input(layer))
    branched(layer, uses, (0.7,))
    output = layer.to(dtype)(an_input(layer, dtype))
    assert output.dtype == dtype
    # Some roundings of the dtype's precision.
    assert distance(output.double(), exact) < 8 * torch.finfo(dtype).eps


def test_no_tensor_of_the_weights_size_is_made(layer):
    uses = [network(layer, 4, 1), network(layer, 8, 2)]
    strengths, _ = branched(layer, uses, (0.7, 0.3))
    x = an_input(layer)
    with Recorder() as live:
        for value in (0.2, 0.4, 0.6):
            strengths.set([value, 1.0])
            layer(x)
    assert live.results
    assert layer.weight.numel() not in {size for _, size in live.results}
    # The control: the recorder sees the weight that a merge makes.
    with Recorder() as merge:
        compose(layer.weight, [(uses[0], 1.0)])
    assert layer.weight.numel() in {size for _, size in merge.results}


def test_a_new_strength_is_one_write_for_all_layers():
    torch.manual_seed(0)
    layers = [make().double().requires_grad_(False) for make in LAYERS.values()]
    strengths = Strengths(2)
    for layer in layers:
        uses = [(0, network(layer, 4, 1)), (1, network(layer, 8, 2))]
        attach(layer, Branch(layer, uses, strengths))
    strengths.set([1.0, 1.0])
    for layer in layers:
        layer(an_input(layer))
    with Recorder() as recorder:
        strengths.set([0.5, 0.25])
    writes = [size for name, size in recorder.results if name.startswith("aten::copy_")]
    assert writes == [len(layers) * (4 + 8)]


def test_the_layer_itself_is_left_alone(layer):
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    attributes, pointer = set(vars(layer)), layer.weight.data_ptr()
    _, handle = branched(layer, [network(layer, 4, 1)], (1.0,))
    layer(an_input(layer))
    after = layer.state_dict()
    assert set(vars(layer)) == attributes
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert layer.weight.data_ptr() == pointer
    handle.remove()
    assert len(layer._forward_hooks) == 0


def test_a_type_that_needs_the_whole_weight_is_refused():
    layer = LAYERS["linear"]().double()
    dense = replace(LORA, low_rank=None, output=None)
    with pytest.raises(UsageError, match="LoRA / LoCon cannot be applied live"):
        Branch(layer, [(0, network(layer, 4, 1, dense))], Strengths(1))


def by_row(network, module, x, values):
    """Return the output of each row of x from a twin whose weight and bias hold the network at that row's strength."""
    outputs = []
    for row, value in zip(x.split(1), values, strict=True):
        twin = copy.deepcopy(module)
        twin._forward_hooks.clear()
        change = compose(module.weight, [(network, value)])
        twin.weight += change.weight
        if change.bias is not None:
            twin.bias += change.bias
        outputs.append(twin(row))
    return torch.cat(outputs)


def live_rows(network, module, x, values):
    twin = copy.deepcopy(module)
    strengths = Strengths(1)
    attach(twin, Branch(twin, [(0, network)], strengths))
    strengths.set(*([value] for value in values))
    return twin(x)


def assert_rows_agree(network, module, x, limit):
    values = (0.7, -0.4)
    expected = by_row(network, module, x, values)
    live = live_rows(network, module, x, values)
    assert distance(live, expected) <= limit
    # The controls: without the network, with the rows exchanged, and with one row off by 5 %, it differs clearly.
    assert distance(module(x), expected) > 1e-2
    assert distance(live, by_row(network, module, x, values[::-1])) > 1e-2
    assert distance(live, by_row(network, module, x, (0.7, -0.38))) > 1e-4


DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def in_dtype(tensors, dtype):
    return {
        suffix: t.to(dtype) if t.is_floating_point() and t.dim() else t
        for suffix, t in tensors.items()
    }


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize(
    ("variant", "name"),
    [case for case in variants.cases(variants.VARIANTS) if case[1] in ("linear", "strided")],
)
def test_every_type_has_a_strength_for_each_row(variant, name, dtype, limit):
    module = variants.a_module(name)
    kind, tensors = variants.trained(variant, module)
    module = module.to(dtype)
    network = LayerNetwork(kind, in_dtype(tensors, dtype))
    assert_rows_agree(network, module, variants.an_input(module), limit)


def drawn(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(12), lambda: nn.GroupNorm(3, 12)])
def test_normalisations_have_a_strength_for_each_row(make):
    module = make().double().requires_grad_(False)
    network = LayerNetwork(NORM, {"w_norm": drawn(12), "b_norm": 0.5 * drawn(12)})
    x = drawn(2, 12, 5, 5) if isinstance(module, nn.GroupNorm) else drawn(2, 7, 12)
    assert_rows_agree(network, module, x, 1e-12)


@pytest.mark.parametrize("name", ["linear", "strided"])
def test_biases_have_a_strength_for_each_row(name):
    module = variants.a_module(name)
    kind, tensors = variants.trained("lora", module)
    x = variants.an_input(module)
    for network in (
        LayerNetwork(with_bias(kind), {**tensors, "diff_b": drawn(20)}),
        LayerNetwork(FULL, {"diff": drawn(*module.weight.shape), "diff_b": drawn(20)}),
    ):
        assert_rows_agree(network, module, x, 1e-12)


@pytest.mark.parametrize("name", ["linear", "strided"])
def test_replaced_weights_and_sparse_remainders_have_a_strength_for_each_row(name):
    module = variants.a_module(name)
    kind, tensors = variants.trained("lora", module)
    rows, columns = torch.tensor([[0, 3, 19], [5, 11, 0]])
    size = torch.tensor([20, module.weight[0].numel()])
    remainder = {
        "bias_indices": torch.stack([rows, columns]),
        "bias_values": drawn(3),
        "bias_size": size,
    }
    x = variants.an_input(module)
    for network in (
        LayerNetwork(with_remainder(kind), {**tensors, **remainder}),
        LayerNetwork(SET_WEIGHT, {"set_weight": drawn(*module.weight.shape)}),
    ):
        assert_rows_agree(network, module, x, 1e-12)


def test_networks_with_one_strength_and_with_one_for_each_row_share_a_branch(layer):
    uses = [network(layer, 4, 1), network(layer, 8, 2), moved(layer, LOKR, 2)]
    rows = [(0.7, 0.3, 1.0), (0.7, -0.5, 0.0)]
    x = an_input(layer)
    strengths, _ = branched(layer, uses, rows[0])
    strengths.set(*rows)
    parts = [baked(layer, uses, row)(part) for row, part in zip(rows, x.split(1), strict=True)]
    assert distance(layer(x), torch.cat(parts)) <= 1e-12
    # The control: the first row's strengths are not the second's.
    assert distance(layer(x), baked(layer, uses, rows[0])(x)) > 1e-2


class StoredLinear(nn.Linear):
    """Computes in the dtype of its input, whatever it stores, as hosts do with 8 bit weights."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x), self.bias.to(x))


class StoredConv(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight.to(x), self.bias.to(x))


STORED = {
    "linear": lambda: StoredLinear(12, 20),
    "conv3x3": lambda: StoredConv(12, 20, 3, padding=1),
}


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("variant", "name"),
    [case for case in variants.cases(variants.VARIANTS) if case[1] in STORED],
)
def test_the_storage_of_the_weight_does_not_matter(variant, name, storage):
    torch.manual_seed(0)
    module = STORED[name]().requires_grad_(False)
    module.weight = nn.Parameter(module.weight.to(storage), requires_grad=False)
    exact = copy.deepcopy(module).double()
    kind, tensors = variants.trained(variant, exact)
    x = variants.an_input(exact)
    live = live_rows(
        LayerNetwork(kind, in_dtype(tensors, torch.float32)), module, x.float(), (0.7, -0.4)
    )
    expected = by_row(LayerNetwork(kind, tensors), exact, x, (0.7, -0.4))
    assert distance(live.double(), expected) <= 1e-5
    assert distance(exact(x), expected) > 1e-2


@pytest.mark.parametrize("name", ["linear", "conv3x3"])
def test_factors_in_half_precision_are_multiplied_exactly(name):
    # A scale of 2 / 3 would round every element of the up factor.
    module = variants.a_module(name)
    kind, tensors = variants.trained("lora", module)
    halves = {**in_dtype(tensors, torch.float16), "alpha": torch.tensor(8.0 / 3.0)}
    exactly = LayerNetwork(kind, in_dtype(halves, torch.float64))
    x = variants.an_input(module)
    live = live_rows(LayerNetwork(kind, halves), module.float(), x.float(), (0.7, 0.7))
    assert distance(live.double(), by_row(exactly, module.double(), x, (0.7, 0.7))) <= 1e-5
