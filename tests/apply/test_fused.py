"""Networks on layers that one module computes together: the module with temporaries against one whose weights hold the networks.

The expected module's slices are changed here by hand, each by the delta of its own type.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lib_lora.apply.fused import Fused, Share
from lib_lora.apply.session import LoadedNetwork, Session
from lib_lora.apply.strengths import MIXED, Strengths
from lib_lora.families.table import WHOLE, Part
from lib_lora.networks.contract import LayerNetwork, LayerShape
from lib_lora.schedule.curve import Curve, NetworkUse
from tests.halves import needs
from tests.networks.variants import VARIANTS, trained

WIDTH = 12
LAYERS = (
    *(("in_proj_weight", "in_proj_bias", Part(index, of=3)) for index in range(3)),
    ("out_proj.weight", "out_proj.bias", WHOLE),
)
TYPES = [name for name in VARIANTS if not name.endswith("-tucker")]


def an_attention(dtype=torch.float64):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, 2).to(dtype).requires_grad_(False)
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape).to(dtype) / 3)
    return attention


def network(variant, attention, place):
    """Return a trained network of a layer."""
    weight, _, part = LAYERS[place]
    rows = attention.get_parameter(weight).chunk(part.of)[part.index]
    return LayerNetwork(*trained(variant, SimpleNamespace(weight=rows.double())))


def baked(attention, changes):
    """Return a copy with strength * delta in its slices; changes: (place, network, strength)."""
    twin = copy.deepcopy(attention)
    for place, (kind, tensors), strength in changes:
        weight, bias, part = LAYERS[place]
        old = attention.get_parameter(weight).chunk(part.of)[part.index]
        delta = kind.delta(tensors, old.double(), LayerShape(tuple(old.shape)))
        change = twin.get_parameter(weight).chunk(part.of)[part.index]
        change += (strength * delta.weight).to(change.dtype)
        if delta.bias is not None:
            twin.get_parameter(bias).chunk(part.of)[part.index].add_(strength * delta.bias)
    return twin


def fuse(attention, networks, strengths, seen=None):
    written = (lambda module: None) if seen is None else seen.append
    shares = [
        (Share(attention, *LAYERS[place], written), [(slot, network)])
        for slot, (place, network) in enumerate(networks)
    ]
    return Fused(shares, strengths)


def run(attention, dtype=torch.float64):
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(7, 2, WIDTH, generator=draw, dtype=torch.float64).to(dtype)
    mask = torch.full((7, 7), float("-inf"), dtype=dtype).triu(1)
    return attention(x, x, x, need_weights=False, attn_mask=mask)[0]


def on_every_layer(variant, attention):
    return [(place, network(variant, attention, place)) for place in range(4)]


@pytest.mark.parametrize("variant", TYPES)
def test_every_type_is_the_attention_with_that_much_baked_in(variant):
    attention = an_attention()
    networks = on_every_layer(variant, attention)
    strengths = Strengths(4)
    fused = fuse(attention, networks, strengths)
    strengths.set([0.8, -0.5, 0.3, 0.6])
    found = run(attention)
    fused.remove()
    pairs = [(place, (part.type, part.tensors)) for place, part in networks]
    change = [(*pair, s) for pair, s in zip(pairs, (0.8, -0.5, 0.3, 0.6), strict=True)]
    off = [(*pair, 1.05 * s) for *pair, s in change]
    assert torch.allclose(found, run(baked(attention, change)), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found, run(baked(attention, off)), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, run(attention), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), pytest.param(torch.float16, 4e-3, marks=needs(torch.float16))],
)
def test_deltas_are_summed_exactly_and_rounded_once(dtype, tolerance):
    attention = an_attention(dtype)
    networks = on_every_layer("lora", attention)
    strengths = Strengths(4)
    fused = fuse(attention, networks, strengths)
    strengths.set([1.0] * 4)
    found = run(attention, dtype)
    fused.remove()
    change = [(place, (part.type, part.tensors), 1.0) for place, part in networks]
    expected = run(baked(attention, change), dtype)
    assert found.dtype == dtype
    assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_two_networks_of_a_layer_add_up_and_one_that_is_off_does_nothing():
    attention = an_attention()
    parts = [network(variant, attention, 1) for variant in ("lora", "lokr", "loha")]
    share = Share(attention, *LAYERS[1], lambda module: None)
    strengths = Strengths(3)
    fused = Fused([(share, list(enumerate(parts)))], strengths)
    strengths.set([0.5, 0.0, 0.7])
    found = run(attention)
    fused.remove()
    one = baked(attention, [(1, (parts[0].type, parts[0].tensors), 0.5)])
    both = baked(one, [(1, (parts[2].type, parts[2].tensors), 0.7)])
    assert torch.allclose(found, run(both), rtol=1e-9, atol=1e-9)


def test_the_module_keeps_its_tensors_and_gets_its_forward_back():
    attention = an_attention()
    before = run(attention)
    kept = {name: (tensor, tensor.clone()) for name, tensor in attention.named_parameters()}
    strengths = Strengths(4)
    fused = fuse(attention, on_every_layer("lora", attention), strengths)
    assert torch.equal(run(attention), before)  # all strengths are 0
    strengths.set([1.0] * 4)
    assert not torch.allclose(run(attention), before)
    for name, tensor in attention.named_parameters():
        assert tensor is kept[name][0]
        assert torch.equal(tensor, kept[name][1])
    fused.remove()
    fused.remove()
    assert "forward" not in attention.__dict__
    assert torch.equal(run(attention), before)


def test_the_module_keeps_its_tensors_when_it_raises():
    attention = an_attention()
    strengths = Strengths(4)
    fused = fuse(attention, on_every_layer("lora", attention), strengths)
    strengths.set([1.0] * 4)
    kept = attention.in_proj_weight
    with pytest.raises(AssertionError):
        attention(torch.zeros(7, 2, 5), torch.zeros(7, 2, 5), torch.zeros(7, 2, 5))
    assert attention.in_proj_weight is kept
    fused.remove()


def test_what_a_host_has_put_into_the_class_or_the_instance_is_still_called(monkeypatch):
    attention, called = an_attention(), []
    strengths = Strengths(4)
    own = attention.forward

    def instance_forward(*arguments, **options):
        called.append("instance")
        return own(*arguments, **options)

    attention.forward = instance_forward
    fused = fuse(attention, on_every_layer("lora", attention), strengths)
    strengths.set([1.0] * 4)
    found = run(attention)
    assert called == ["instance"]
    fused.remove()
    assert attention.forward is instance_forward
    del attention.forward

    def class_forward(module, *arguments, **options):
        called.append("class")
        return original(module, *arguments, **options)

    original = nn.MultiheadAttention.forward
    fused = fuse(attention, on_every_layer("lora", attention), strengths)
    monkeypatch.setattr(nn.MultiheadAttention, "forward", class_forward)
    assert torch.allclose(run(attention), found)
    assert called == ["instance", "class"]
    fused.remove()


def test_a_host_that_writes_late_writes_before_the_weights_are_read():
    attention, seen = an_attention(), []
    fused = fuse(attention, on_every_layer("lora", attention), strengths := Strengths(4), seen)
    run(attention)
    assert seen == []
    strengths.set([1.0, 0.0, 0.0, 0.0])
    run(attention)
    assert seen == [attention]
    fused.remove()


def test_hooks_of_the_module_fire_once():
    attention, seen = an_attention(), []
    attention.register_forward_hook(lambda *call: seen.append(call[0]))
    fused = fuse(attention, on_every_layer("lora", attention), strengths := Strengths(4))
    strengths.set([1.0] * 4)
    run(attention)
    assert seen == [attention]
    fused.remove()


def test_rows_that_differ_get_the_strength_of_the_first_and_this_is_told():
    told = []
    linear = nn.Linear(WIDTH, 3 * WIDTH).double().requires_grad_(False)
    part = LayerNetwork(*trained("lora", SimpleNamespace(weight=linear.weight[WIDTH : 2 * WIDTH])))
    share = Share(linear, "weight", "bias", Part(1, of=3), lambda module: None)
    fused = Fused([(share, [(0, part)])], strengths := Strengths(1, told.append))
    strengths.set([0.5], [0.0])
    x = torch.randn(2, WIDTH).double()
    found = linear(x)
    fused.remove()
    delta = part.type.delta(part.tensors, linear.weight[:WIDTH], LayerShape((WIDTH, WIDTH))).weight
    expected = linear(x)
    expected[:, WIDTH : 2 * WIDTH] += 0.5 * x @ delta.T
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert told == [MIXED]


def test_a_session_runs_shares_beside_modules_and_takes_all_of_it_back():
    attention = an_attention()
    part = network("lora", attention, 2)
    use = NetworkUse(name="a", curves={"unet": Curve.constant(0), "te": Curve.constant(0.7)})
    before = run(attention)
    with Session([(use, LoadedNetwork("a", {"te1.v": part}))]) as session:
        session.open({"te1.v": Share(attention, *LAYERS[2], lambda module: None)})
        session.encode()
        found = run(attention)
        session.disarm()
        assert torch.equal(run(attention), before)
    expected = baked(attention, [(2, (part.type, part.tensors), 0.7)])
    assert torch.allclose(found, run(expected), rtol=1e-9, atol=1e-9)
    assert "forward" not in attention.__dict__
