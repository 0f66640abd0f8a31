"""Networks on live layers: kohya's targets, no effect at the start, and no trace afterwards."""

import copy

import pytest
import torch

from lib_lora.errors import UnmatchedError
from lib_lora.families.sd1 import SD1
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.config_learning import NetworkConfig
from tests.golden_data import golden, shapes_of

FACTS = golden("sd15")
LINEAR = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
RECORDED = {name: ".".join(place[:2]) for name, place in FACTS["kohya"].items()}


@pytest.fixture
def unet(tiny):
    return copy.deepcopy(tiny.denoiser)


def attached_to(unet, tiny, **choices):
    config = NetworkConfig(rank=4, alpha=2.0, **choices)
    layers = selected_layers(tiny.checkpoint.family, tiny.checkpoint.layers, config)
    return attach(config, layers, live_modules({"unet": unet}, layers), 0)


def predicted(unet):
    draw = torch.Generator().manual_seed(0)
    noisy, context = (torch.randn(size, generator=draw) for size in ((1, 4, 8, 8), (1, 77, 64)))
    with torch.no_grad():
        return unet(noisy, torch.tensor([500]), context).sample


def test_targets_are_kohyas():
    layers = SD1.layers(shapes_of(FACTS["original"]))
    default = selected_layers(SD1, layers, NetworkConfig(text_encoder=True))
    assert set(default) == {RECORDED[name] for name in FACTS["kohya_default"]}
    convolutions = selected_layers(SD1, layers, NetworkConfig(text_encoder=True, conv_rank=4))
    assert set(convolutions) == set(RECORDED.values())
    encoder = selected_layers(SD1, layers, NetworkConfig(unet=False, text_encoder=True))
    assert set(encoder) == {id_ for id_ in default if id_.startswith("te1.")}


def test_a_fresh_network_changes_nothing_and_a_trained_one_does_until_it_is_detached(unet, tiny):
    before = predicted(unet)
    weights = {key: tensor.clone() for key, tensor in unet.state_dict().items()}
    attached = attached_to(unet, tiny)
    assert torch.equal(predicted(unet), before)
    for tensor in attached.trainable("unet"):
        tensor.data += 0.05
    assert float((predicted(unet) - before).abs().max()) > 1e-3
    attached.detach()
    assert torch.equal(predicted(unet), before)
    assert all(torch.equal(unet.state_dict()[key], tensor) for key, tensor in weights.items())


def test_a_layers_start_does_not_depend_on_the_others(unet, tiny):
    few = attached_to(unet, tiny)
    many = attached_to(copy.deepcopy(tiny.denoiser), tiny, conv_rank=8)
    assert few.tensors.keys() < many.tensors.keys()
    for id_, tensors in few.tensors.items():
        for suffix, tensor in tensors.items():
            assert torch.equal(many.tensors[id_][suffix], tensor)


def test_convolutions_have_their_rank_and_the_common_scale(unet, tiny):
    tensors = attached_to(unet, tiny, conv_rank=8).tensors["unet.down_blocks.0.resnets.0.conv1"]
    assert tensors["lora_down.weight"].shape == (8, 32, 3, 3)
    assert float(tensors["alpha"]) / 8 == 2.0 / 4


def test_the_network_stays_in_float32_on_a_smaller_base(unet, tiny):
    attached = attached_to(unet.to(torch.bfloat16), tiny)
    noisy, context = torch.ones(1, 4, 8, 8), torch.ones(1, 77, 64)
    smaller = (each.to(torch.bfloat16) for each in (noisy, context))
    noisy, context = smaller
    output = unet(noisy, torch.tensor([500]), context).sample
    assert output.dtype == torch.bfloat16
    output.float().square().sum().backward()
    assert {t.dtype for t in attached.trainable("unet")} == {torch.float32}
    assert any(bool(t.grad.abs().sum() > 0) for t in attached.trainable("unet"))


def test_a_fresh_dora_changes_nothing_and_its_magnitudes_are_exact_on_a_smaller_base(unet, tiny):
    unet = unet.to(torch.bfloat16)
    layer = unet.get_submodule(LINEAR.removeprefix("unet."))
    x = torch.randn(4000, layer.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = layer(x)
    attached = attached_to(unet, tiny, dora=True)
    assert attached.type.id == "dora-lora"
    sizes = attached.tensors[LINEAR]["dora_scale"]
    expected = layer.weight.float().norm(dim=1, keepdim=True)
    torch.testing.assert_close(sizes, expected, rtol=1e-6, atol=0)
    assert torch.equal(layer(x), before)
    sizes.data *= 1.01
    y, right = layer(x).detach().float(), before.float()
    # Magnitudes in bfloat16 would be off by up to 0.004, each for a whole row; outputs in it are, but not on average.
    ratios = (y * right).sum(0) / right.square().sum(0)
    assert float((ratios - 1.01).abs().max()) < 1e-3


@pytest.mark.parametrize(
    ("choices", "shapes"),
    [
        ({"type": "lokr", "factor": 2}, {"lokr_w1": (2, 2)}),
        ({"type": "lokr", "factor": 8}, {"lokr_w1": (4, 4)}),
        ({"rank_stabilized": True}, {"alpha": ()}),
    ],
)
def test_options_of_a_type_reach_it(unet, tiny, choices, shapes):
    tensors = attached_to(unet, tiny, **choices).tensors[LINEAR]
    assert {suffix: tuple(tensors[suffix].shape) for suffix in shapes} == shapes
    if "rank_stabilized" in choices:
        assert float(tensors["alpha"]) / 4 == pytest.approx(2.0 / 4**0.5)


def test_a_core_is_for_convolutions(unet, tiny):
    tensors = attached_to(unet, tiny, conv_rank=3, tucker=True).tensors
    assert tensors["unet.down_blocks.0.resnets.0.conv1"]["lora_mid.weight"].shape == (3, 3, 3, 3)
    assert "lora_mid.weight" not in tensors[LINEAR]


def test_norms_are_trained_where_the_type_is_theirs(unet, tiny):
    before = predicted(unet)
    attached = attached_to(unet, tiny, type="norm")
    widths = {
        f"unet.{name}": module.weight.shape
        for name, module in tiny.denoiser.named_modules()
        if isinstance(module, torch.nn.LayerNorm | torch.nn.GroupNorm)
    }
    assert {id_: t["w_norm"].shape for id_, t in attached.tensors.items()} == widths
    assert torch.equal(predicted(unet), before)
    draw = torch.Generator().manual_seed(1)
    for tensor in attached.trainable("unet"):
        tensor.data += 0.1 * torch.randn(tensor.shape, generator=draw)
    trained = predicted(unet)
    attached.detach()
    for name, module in unet.named_modules():
        if f"unet.{name}" in widths:
            module.weight.data += attached.tensors[f"unet.{name}"]["w_norm"].detach()
            module.bias.data += attached.tensors[f"unet.{name}"]["b_norm"].detach()
    spread = float(before.max() - before.min())
    assert float((predicted(unet) - trained).abs().max()) <= 1e-5 * spread
    assert float((trained - before).abs().max()) > 1e-2 * spread


def test_nothing_to_train_is_refused(unet):
    with pytest.raises(UnmatchedError, match="no layer"):
        attach(NetworkConfig(), {}, {}, 0)
