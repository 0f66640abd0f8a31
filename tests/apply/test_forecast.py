"""What networks take in memory once they act: counted over all tensors there are, beside what was forecast and what is allowed."""

import gc
import logging

import pytest
import torch
from torch import nn

from lib_lora.apply.forecast import forecast, memory_note
from lib_lora.apply.fused import Share
from lib_lora.apply.session import LoadedNetwork, Row, Session
from lib_lora.families.table import Part
from lib_lora.networks.contract import CreateOptions, LayerNetwork, LayerShape
from lib_lora.networks.full import FULL, with_bias
from lib_lora.networks.lora import DOWN, LORA, UP
from lib_lora.networks.sparse import with_remainder
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.grammar import parse_prompt
from tests.networks import variants

CLOCK = Clock.from_sigmas([4.0, 2.0, 1.0])
LAYERS = {
    "linear": lambda: (nn.Linear(192, 160), (2, 5, 192)),
    "conv3x3": lambda: (nn.Conv2d(48, 64, 3, padding=1), (2, 48, 6, 6)),
}
RANK = 32
ALIKE = (Row(),)
APART = (Row(), Row(uses=frozenset({0})))


@pytest.fixture(scope="module", autouse=True)
def only_new_objects():
    """Leave out of every count what is there already; there is much of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def held():
    """Return the bytes of all memory that some tensor has."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(memory.values())


def as_read(tensors, dtype):
    """Return tensors as they are read from a file: pieces of one memory."""
    stored = {suffix: t.to(dtype) if t.is_floating_point() else t for suffix, t in tensors.items()}
    floats = [suffix for suffix, t in stored.items() if t.is_floating_point()]
    flat = torch.cat([stored[suffix].flatten().view(torch.uint8) for suffix in floats]).view(dtype)
    pieces = flat.split([stored[suffix].numel() for suffix in floats])
    whole = {
        suffix: piece.view(stored[suffix].shape)
        for suffix, piece in zip(floats, pieces, strict=True)
    }
    return {**stored, **whole}


def a_network(module, variant, dtype=torch.float16):
    """Return a network of any type as a file of this dtype holds it."""
    draw = torch.Generator().manual_seed(1)
    size = tuple(module.weight.shape)
    if variant == "sparse":
        rows, columns = torch.randint(0, 48, (2, 100), generator=draw)
        kind, tensors = variants.fresh("lora", module)
        extra = {
            "bias_indices": torch.stack([rows, columns]),
            "bias_values": torch.randn(100, generator=draw),
            "bias_size": torch.tensor([size[0], module.weight[0].numel()]),
        }
        return LayerNetwork(with_remainder(kind), as_read({**tensors, **extra}, dtype))
    if variant == "bias":
        kind, tensors = variants.fresh("lora", module)
        bias = torch.randn(size[0], generator=draw)
        return LayerNetwork(with_bias(kind), as_read({**tensors, "diff_b": bias}, dtype))
    kind, tensors = variants.fresh(variant, module)
    return LayerNetwork(kind, as_read(tensors, dtype))


def drawn(module, size, networks, rows=ALIKE):
    """Compute one evaluation and return the session, which is still open, and the uses."""
    tags = "".join(f"<lora:{index}:1>" for index in range(len(networks)))
    uses = [
        (use, LoadedNetwork(use.name, {"unet.layer": network}))
        for use, network in zip(parse_prompt(tags).uses, networks, strict=True)
    ]
    networks.clear()
    session = Session(uses)
    session.open({"unet.layer": module})
    session.begin_pass(CLOCK)
    session.step(4.0, rows)
    module(torch.ones(size, dtype=module.weight.dtype))
    return session, uses


CASES = [
    *(case for case in variants.cases(variants.VARIANTS) if case[1] in LAYERS),
    *((variant, layer) for variant in ("sparse", "bias") for layer in LAYERS),
]


@pytest.mark.parametrize(("variant", "layer"), CASES)
def test_every_type_takes_what_is_forecast(variant, layer):
    torch.manual_seed(0)
    module, size = LAYERS[layer]()
    module.requires_grad_(False)
    before = held()
    networks = [a_network(module, variant)]
    loaded = LoadedNetwork("x", {"unet.layer": networks[0]})
    expected = forecast([loaded.layers], {"unet.layer": module}, torch.float32)
    loaded.layers.clear()
    session, _ = drawn(module, size, networks)
    taken = held() - before
    assert taken == pytest.approx(expected, rel=0.1)
    session.close()
    assert held() - before < 100


def a_lora(module, dtype):
    draw = torch.Generator().manual_seed(1)
    options = CreateOptions(RANK, 16.0)
    tensors = LORA.create(LayerShape(tuple(module.weight.shape)), options, draw)
    return LayerNetwork(LORA, as_read(tensors, dtype))


STORED = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rows", [ALIKE, APART])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", STORED)
def test_loras_take_their_parameters_and_little_more(stored, compute, rows, layer):
    torch.manual_seed(0)
    module, size = LAYERS[layer]()
    module.requires_grad_(False).to(compute)
    before = held()
    networks = [a_lora(module, stored) for _ in range(3)]
    parameters = sum(
        network.tensors[suffix].numel() for network in networks for suffix in (DOWN, UP)
    )
    session, uses = drawn(module, size, networks, rows)
    taken = held() - before
    assert taken <= 1.2 * parameters * compute.itemsize
    # The control: what is not let go is seen.
    uses[0][1].layers["unet.layer"] = a_lora(module, compute)
    assert held() - before > 1.2 * parameters * compute.itemsize
    session.close()


def test_another_model_does_not_add_to_the_memory():
    torch.manual_seed(0)
    (module, size), (other, _) = LAYERS["linear"](), LAYERS["linear"]()
    before = held()
    session, _ = drawn(module.requires_grad_(False), size, [a_lora(module, torch.float16)])
    once = held() - before
    (use,) = parse_prompt("<lora:x:1>").uses
    again = LoadedNetwork("x", {"unet.layer": a_lora(other, torch.float16)})
    session.rebind([(use, again)], {"unet.layer": other.requires_grad_(False)})
    del again
    session.step(2.0)
    other(torch.ones(size))
    assert held() - before == once


def test_layers_that_take_no_network_are_not_forecast():
    module, _ = LAYERS["linear"]()
    layers = {"unet.layer": a_network(module, "full"), "unet.absent": a_network(module, "full")}
    assert layers["unet.layer"].type == FULL
    expected = forecast([layers], {"unet.layer": module}, torch.bfloat16)
    assert expected == 2 * module.weight.numel()
    assert forecast([layers], {"unet.layer": module}) == 4 * module.weight.numel()
    stored = module.to(torch.float8_e4m3fn)
    assert forecast([layers], {"unet.layer": stored}) == 2 * module.weight.numel()


def test_a_share_of_a_module_keeps_its_network_as_it_came():
    module, _ = LAYERS["linear"]()
    share = Share(module, "weight", "bias", Part(), lambda module: None)
    layers = {"te2.layer": a_lora(module, torch.float16)}
    parameters = RANK * (192 + 160) + 1  # and alpha
    assert forecast([layers], {"te2.layer": share}, torch.float32) == 2 * parameters


def test_an_opened_session_tells_what_is_forecast(caplog):
    caplog.set_level(logging.INFO, "lib_lora.apply.session")
    module, _ = LAYERS["linear"]()
    (use,) = parse_prompt("<lora:x:1>").uses
    network = LayerNetwork(FULL, {"diff": torch.zeros(module.weight.shape)})
    with Session([(use, LoadedNetwork("x", {"unet.layer": network}))]) as session:
        session.open({"unet.layer": module})
    # 160 * 192 numbers of 4 bytes
    assert caplog.messages == ["networks take 0.12 MB beside the model"]


def test_a_person_is_told_of_networks_that_are_no_lora():
    module, _ = LAYERS["linear"]()
    lora, full = ({"unet.layer": a_network(module, kind)} for kind in ("lora", "full"))
    assert memory_note([lora], {"unet.layer": module}) is None
    megabytes = (4 * 192 * 160 + forecast([lora], {"unet.layer": module})) / 1e6
    assert f" {megabytes:.2f} MB " in memory_note([lora, full], {"unet.layer": module})
