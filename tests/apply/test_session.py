"""A session over a small model: strengths follow the clock, and nothing stays behind."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from lib_lora.apply.session import LoadedNetwork, Row, Session
from lib_lora.apply.strengths import MIXED
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import CreateOptions, LayerNetwork, LayerShape
from lib_lora.networks.lora import LORA
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.curve import Curve
from lib_lora.schedule.grammar import parse_prompt

CLOCK = Clock.from_sigmas([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])


class Model(nn.Module):
    """Two convolutions and a text encoder's layer; `broken` makes it raise between the convolutions.

    `tiles`: the second convolution computes so many parts of each row one after another, as HyperTile lets attention do.
    """

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.words = nn.Linear(6, 6)
        self.broken, self.tiles = False, 1
        self.double().requires_grad_(False)

    def forward(self, x):
        hidden = self.first(x)
        if self.broken:
            raise ValueError("out of memory")
        parts = hidden.unflatten(-1, (self.tiles, -1)).movedim(
            -2, 1
        )  # (rows, tiles, 8, h, w / tiles)
        tiled = self.second(parts.flatten(0, 1)).unflatten(0, parts.shape[:2])
        return tiled.movedim(1, -2).flatten(-2)

    def layers(self):
        return {"unet.first": self.first, "unet.second": self.second, "te1.words": self.words}

    def hooks(self):
        return sum(
            len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self.modules()
        )


X = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WORDS = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def model():
    return Model()


def loaded(model, seed, layers=("unet.first", "unet.second", "te1.words"), name="x"):
    draw = torch.Generator().manual_seed(seed)
    networks = {}
    for layer_id in layers:
        shape = LayerShape(tuple(model.layers()[layer_id].weight.shape))
        tensors = LORA.create(shape, CreateOptions(2, 2.0, torch.float64), draw)
        up = tensors["lora_up.weight"]
        tensors["lora_up.weight"] = torch.randn(up.shape, generator=draw, dtype=torch.float64)
        networks[layer_id] = LayerNetwork(LORA, tensors)
    return LoadedNetwork(name, networks)


def uses_of(model, *tags):
    """Return the use of each tag with a network of its own."""
    uses = parse_prompt("".join(tags)).uses
    return [(use, loaded(model, 10 + index)) for index, use in enumerate(uses)]


def opened(model, uses, unet=None):
    """Return a session on the model at the start of a pass; `uses` keep their networks, which a session takes."""
    session = Session(copied(uses))
    session.open(model.layers(), unet)
    session.begin_pass(CLOCK)
    return session


def copied(uses):
    copies = {id(one): LoadedNetwork(one.name, dict(one.layers)) for _, one in uses}
    return [(use, copies[id(network)]) for use, network in uses]


def baked(uses, strengths, seed=0):
    """Return a twin of the model whose weights hold the networks at these strengths."""
    twin = Model(seed)
    for layer_id, layer in twin.layers().items():
        pairs = [
            (network.layers[layer_id], s) for (_, network), s in zip(uses, strengths, strict=True)
        ]
        layer.weight += compose(layer.weight, pairs).weight
    return twin


def distance(a, b):
    return float((a - b).abs().max() / (b.max() - b.min()))


def test_strengths_follow_the_schedules(model):
    uses = uses_of(model, "<lora:a:0@0,1@1>", "<lora:b:0.5:start=1:stop=3>")
    with opened(model, uses) as session:
        for step, level in enumerate(CLOCK.levels):
            assert session.step(level).step == step
            # A ramp over five evaluations, and steps 1 and 2.
            expected = (step / 4, 0.5 if step in (1, 2) else 0.0)
            assert distance(model(X), baked(uses, expected)(X)) <= 1e-12
            # The control: a ramp that is off by 5 % is told apart.
            if step:
                wrong = baked(uses, (1.05 * expected[0], expected[1]))
                assert distance(model(X), wrong(X)) > 1e-4
    assert torch.equal(model(X), Model()(X))


def test_networks_with_equal_names_add_up(model):
    (use, network), (again, _) = uses_of(model, "<lora:a:0.3>", "<lora:a:0.4>")
    with opened(model, [(use, network), (again, network)]) as session:
        session.step(8.0)
        assert distance(model(X), baked([(use, network)], [0.7])(X)) <= 1e-12


def test_text_encoders_take_their_own_strengths(model):
    uses = uses_of(model, "<lora:a:0.25@0,1@1:2>", "<lora:b:0.5:2>")
    with opened(model, uses) as session:
        session.encode()
        assert distance(model.words(WORDS), baked(uses, (0.25, 0.5)).words(WORDS)) <= 1e-12
        assert torch.equal(model(X), Model()(X))
        session.encode({0: 0.75})
        assert distance(model.words(WORDS), baked(uses, (0.75, 0.5)).words(WORDS)) <= 1e-12
        session.step(8.0)
        assert distance(model(X), baked(uses, (2.0, 2.0))(X)) <= 1e-12
        assert torch.equal(model.words(WORDS), Model().words(WORDS))


def test_nothing_acts_before_the_first_step_and_after_disarming(model):
    plain = Model()(X)
    with Session(uses_of(model, "<lora:a:1>")) as session:
        session.open(model.layers())
        assert torch.equal(model(X), plain)
        with pytest.raises(RuntimeError, match="begin_pass"):
            session.step(8.0)
        session.begin_pass(CLOCK)
        assert torch.equal(model(X), plain)
        session.step(8.0)
        assert not torch.equal(model(X), plain)
        session.disarm()
        assert torch.equal(model(X), plain)
        session.step(4.0)
        session.begin_pass(CLOCK)
        assert torch.equal(model(X), plain)


def run(model, uses, broken_at):
    """Walk a pass whose evaluation of the model at one index raises."""
    with opened(model, uses) as session:
        for index, level in enumerate(CLOCK.levels):
            session.step(level)
            model.broken = index == broken_at
            model(X)


def test_an_exception_leaves_the_model_as_it_was(model):
    with pytest.raises(ValueError, match="out of memory"):
        run(model, uses_of(model, "<lora:a:1>"), broken_at=3)
    model.broken = False
    assert model.hooks() == 0
    assert torch.equal(model(X), Model()(X))


def test_a_pass_without_an_evaluation_is_no_obstacle(model):
    # DDIM with one step walks no level at all.
    uses = uses_of(model, "<lora:a:0.5>")
    with Session(copied(uses)) as session:
        session.open(model.layers())
        session.begin_pass(Clock.from_timesteps([], []))
        session.encode()
        assert distance(model.words(WORDS), baked(uses, [0.5]).words(WORDS)) <= 1e-12


def test_hooks_stand_on_touched_layers_only_and_go(model):
    (use, _), *_ = uses_of(model, "<lora:a:1>")
    session = Session([(use, loaded(model, 1, layers=("unet.second",)))])
    session.open(model.layers())
    with pytest.raises(RuntimeError, match="rebind"):
        session.open(model.layers())
    assert (model.hooks(), len(model.second._forward_hooks)) == (1, 1)
    session.close()
    session.close()
    assert model.hooks() == 0


def test_every_method_is_harmless_after_close(model):
    session = Session(uses_of(model, "<lora:a:1>"))
    session.open(model.layers())
    session.begin_pass(CLOCK)
    session.close()
    session.step(8.0)
    session.encode()
    session.rebind(uses_of(model, "<lora:a:1>"), model.layers())
    session.disarm()
    assert model.hooks() == 0
    assert torch.equal(model(X), Model()(X))


def test_tensors_are_freed_on_close(model):
    uses = uses_of(model, "<lora:a:1>")
    read = weakref.ref(uses[0][1].layers["unet.first"].tensors["lora_down.weight"])
    session = Session(uses)
    session.open(model.layers())
    session.begin_pass(CLOCK)
    gc.collect()
    assert read() is not None
    session.step(8.0)
    model(X)
    # What was read goes as soon as the product is made of it, whoever holds the uses.
    assert read() is None
    strengths = weakref.ref(session._strengths)  # every branch holds it
    session.close()
    gc.collect()
    assert strengths() is None


def test_rebinding_moves_the_branches(model):
    uses = uses_of(model, "<lora:a:0@0,1@1>")
    other = Model(seed=5)
    with opened(model, uses) as session:
        session.step(2.0)
        session.rebind(copied(uses), other.layers())
        assert model.hooks() == 0
        session.step(1.0)
        assert distance(other(X), baked(uses, [0.75], seed=5)(X)) <= 1e-12


def test_layers_that_the_model_lacks_are_named_in_the_log(model, caplog):
    with Session(uses_of(model, "<lora:a:1>")) as session:
        session.open({"unet.first": model.first})
    assert "'unet.second', 'te1.words'" in caplog.text


def test_an_embedding_is_left_alone_and_told_once(model):
    uses = uses_of(model, "<lora:x:1>")
    words = nn.Embedding(6, 6)
    with Session(copied(uses)) as session:
        session.open({**model.layers(), "te1.words": words})
        session.rebind(copied(uses), {**model.layers(), "te1.words": words})
        session.begin_pass(CLOCK)
        session.encode()
        assert torch.equal(words(torch.arange(6)), words.weight)
        (warning,) = session.warnings
        assert warning.startswith("te1.words: ")


def test_the_hires_pass_is_told_apart(model):
    uses = uses_of(model, "<lora:a:0@0,1@1>")
    with opened(model, uses) as session:
        session.step(0.5)
        session.begin_pass(Clock.from_sigmas([2.0, 1.0, 0.5]), "hires")
        session.step(1.0)
        assert distance(model(X), baked(uses, [0.5])(X)) <= 1e-12


RAMP = "<lora:a:0@0,1@1>"
WIDE = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
COND, UNCOND = Row(), Row(negative=True)


def with_neg(uses, *strengths):
    """Return uses with another strength for the negative prompt."""
    return [
        (replace(use, curves={**use.curves, "neg": Curve.constant(strength)}), network)
        for (use, network), strength in zip(uses, strengths, strict=True)
    ]


def stepped(model, uses, rows):
    """Return an open session at sigma 2, the middle of the pass."""
    session = opened(model, uses, model)
    session.step(2.0, rows)
    return session


def rows_of(uses, x, strengths):
    """Return what twins whose weights hold each row's strengths compute."""
    return torch.cat(
        [baked(uses, row)(part) for row, part in zip(strengths, x.split(1), strict=True)]
    )


def test_the_negative_prompt_has_a_strength_of_its_own(model):
    uses = with_neg(uses_of(model, RAMP, "<lora:b:0.8>"), -0.25, 0.8)
    expected = rows_of(uses, X, [(0.5, 0.8), (-0.25, 0.8)])
    with stepped(model, uses, [COND, UNCOND]) as session:
        assert distance(model(X), expected) <= 1e-12
        # The controls: rows exchanged, and the strength of the negative prompt off by 5 %.
        assert distance(model(X.flip(0)).flip(0), expected) > 1e-2
        wrong = rows_of(uses, X, [(0.5, 0.8), (-0.2375, 0.8)])
        assert distance(model(X), wrong) > 1e-4
        assert session.warnings == []
    assert torch.equal(model(X), Model()(X))


def test_the_negative_prompt_follows_the_unet_where_nothing_else_is_said(model):
    uses = uses_of(model, RAMP)
    with stepped(model, uses, [COND, UNCOND]):
        assert distance(model(X), baked(uses, [0.5])(X)) <= 1e-12


def test_pictures_of_a_batch_have_the_uses_of_their_prompts(model):
    (first, network), (second, _), (third, other) = uses_of(
        model, "<lora:a:0.5>", "<lora:a:-1>", "<lora:b:0.8>"
    )
    # The first picture asks for a and b, the second for a at another strength.
    uses = [(first, network), (second, network), (third, other)]
    rows = [Row(frozenset({0, 2})), Row(frozenset({1})), Row(frozenset({1}), negative=True)]
    expected = rows_of(uses, WIDE, [(0.5, 0, 0.8), (0, -1, 0), (0, -1, 0)])
    with stepped(model, uses, rows):
        assert distance(model(WIDE), expected) <= 1e-12
        assert distance(model(WIDE.flip(0)).flip(0), expected) > 1e-2


def test_a_network_with_many_uses_is_computed_once(model):
    (use, network), (again, _) = uses_of(model, "<lora:a:0.3>", "<lora:a:0.4>")
    sizes = []
    with stepped(model, [(use, network), (again, network)], [COND]) as session:
        session._strengths.view = lambda place, x, view=session._strengths.view: (
            sizes.append(place.elements.stop - place.elements.start) or view(place, x)
        )
        model(X)
    assert sizes == [2, 2]  # the rank, on each of two layers


@pytest.mark.parametrize("calls", [(1, 1, 1), (2, 1), (1, 2)])
def test_calls_for_some_of_the_rows_take_the_strengths_of_these(model, calls):
    uses = with_neg(uses_of(model, RAMP), 0.0)
    with stepped(model, uses, [COND, COND, UNCOND]) as session:
        for level, strength in ((2.0, 0.5), (1.0, 0.75)):
            session.step(level, [COND, COND, UNCOND])
            found = torch.cat([model(part) for part in WIDE.split(calls)])
            expected = rows_of(uses, WIDE, [(strength,), (strength,), (0.0,)])
            assert distance(found, expected) <= 1e-12
        assert session.warnings == []


def test_rows_left_out_do_not_shift_the_next_evaluation(model):
    uses = with_neg(uses_of(model, RAMP), -0.5)
    with stepped(model, uses, [COND, UNCOND]) as session:
        assert distance(model(X[:1]), baked(uses, [0.5])(X[:1])) <= 1e-12
        session.step(1.0, [COND, UNCOND])
        assert distance(model(X), rows_of(uses, X, [(0.75,), (-0.5,)])) <= 1e-12
        assert session.warnings == []


def test_layers_without_a_strength_in_the_rows_of_a_call_are_left_out(model):
    uses = with_neg(uses_of(model, RAMP), 0.0)
    with stepped(model, uses, [COND, UNCOND]):
        assert not torch.equal(model(X[:1]), Model()(X[:1]))
        assert torch.equal(model(X[1:]), Model()(X[1:]))


def test_parts_of_a_row_have_the_strength_of_the_row(model):
    uses = with_neg(uses_of(model, RAMP), -0.5)
    model.tiles = 3
    with stepped(model, uses, [COND, COND, UNCOND]) as session:
        expected = rows_of(uses, WIDE, [(0.5,), (0.5,), (-0.5,)])
        assert distance(model(WIDE), expected) <= 1e-12
        assert session.warnings == []


def test_rows_that_fit_no_prompt_have_the_strength_of_the_first_and_are_told_once(model, caplog):
    uses = with_neg(uses_of(model, RAMP), -0.5)
    with stepped(model, uses, [COND, UNCOND]) as session:
        assert distance(model(WIDE), baked(uses, [0.5])(WIDE)) <= 1e-12
        session.step(1.0, [COND, UNCOND])
        model(WIDE)
        assert session.warnings == [MIXED]
    assert caplog.messages == [MIXED]


def test_rows_are_told_apart_without_the_unet_where_it_is_called_once(model):
    uses = with_neg(uses_of(model, RAMP), -0.5)
    with opened(model, uses) as session:
        session.step(2.0, [COND, UNCOND])
        assert distance(model(X), rows_of(uses, X, [(0.5,), (-0.5,)])) <= 1e-12


def test_the_hook_on_the_unet_goes_as_well(model):
    uses = uses_of(model, RAMP)
    session = stepped(model, uses, [COND])
    assert model.hooks() == 4  # three layers and the model
    other = Model(seed=5)
    session.rebind(copied(uses), other.layers(), other)
    assert (model.hooks(), other.hooks()) == (0, 4)
    session.close()
    assert other.hooks() == 0
