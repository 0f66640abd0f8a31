"""The loop between its draws and its files: accumulation, dropout, what it tells, and how it obeys."""

import copy
import math
import time
from dataclasses import replace

import pytest
import torch

from lib_lora.errors import LoraError
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.loop import Loop, Material
from lib_lora.train.objective import OBJECTIVES, Draws
from lib_lora.train.pace import WARM_UP_STEPS
from lib_lora.train.training import make_optimizer
from tests.train.asked import asked_config


class Teller:
    """A watcher that remembers what it hears and asks what it was given to ask, by step."""

    def __init__(self, asks=None):
        self.steps, self.validations, self.saves, self.answers = [], [], [], []
        self.paces = []
        self.samples = []
        self.asks = dict(asks or {})

    def stage(self, name, step=0, total=0):
        pass

    def step(self, step, total, loss, rate, seconds_left):
        self.steps.append((step, total, loss, rate, seconds_left))

    def pace(self, seconds_per_step, steps_per_epoch, total, sentence):
        self.paces.append((self.steps[-1][0], seconds_per_step, steps_per_epoch, total, sentence))

    def validation(self, step, loss):
        self.validations.append((step, loss))

    def saved(self, file, step):
        self.saves.append(step)

    def note(self, sentence):
        pass

    def sample(self, file, step, prompt, seed):
        self.samples.append((file, step, prompt, seed))

    def disk(self, needed, free):
        self.needed, self.free = needed, free

    def asked(self):
        return self.asks.get(self.steps[-1][0])

    def answer(self, result):
        self.answers.append(result)
        self.asks.pop(self.steps[-1][0])


class Shelf:
    """A keeper that remembers at which steps it was asked to write."""

    def __init__(self):
        self.states, self.networks, self.sampled = [], [], []

    def state(self, step):
        self.states.append(step)

    def network(self, step):
        self.networks.append(step)
        return f"{step}.safetensors"

    def sample(self, step, watcher):
        self.sampled.append(step)


@pytest.fixture
def make_loop(tiny, contexts):
    def make(dtype=torch.float32, **sections):
        config = asked_config("a", "b", "c.safetensors", **sections)
        unet = copy.deepcopy(tiny.denoiser).to(dtype)
        layers = selected_layers(tiny.checkpoint.family, tiny.checkpoint.layers, config.network)
        attached = attach(config.network, layers, live_modules({"unet": unet}, layers), 0, dtype)
        draw = torch.Generator().manual_seed(1)
        material = Material(
            denoise=lambda noisy, times, _, rows: (
                unet(noisy, times, contexts.to(dtype)[rows]).sample
            ),
            latents=torch.randn((3, 4, 8, 8), generator=draw).to(dtype),
            captions=torch.tensor([[1], [2], [1]]),
            buckets=[torch.arange(3)],
            objective=OBJECTIVES["epsilon"],
            gamma=5.0,
            device=torch.device("cpu"),
            compute=dtype,
        )
        return Loop(material, make_optimizer(config, attached), config)

    return make


def values(loop):
    return loop.optimizer.groups[0].flat.clone()


def test_latents_stay_in_ordinary_memory_and_a_step_takes_its_own_to_the_device(make_loop):
    """As many pictures as there are would fill a GPU beside the plan; the device without memory shows where each tensor is."""
    there, seen = torch.device("meta"), []

    def denoise(noisy, times, pictures, rows):
        seen.append([each.device.type for each in (noisy, times, pictures, rows)])
        return noisy

    material = replace(make_loop().material, device=there, denoise=denoise)
    draws = Draws(
        rows=torch.tensor([0, 2]),
        times=torch.tensor([100, 700]),
        noise=torch.zeros(2, 4, 8, 8),
        empty=torch.zeros(2, dtype=torch.bool),
    )
    assert material.loss(draws).device == there
    assert seen == [["meta", "meta", "meta", "cpu"]]
    assert {latents.device.type for latents in material.latents} == {"cpu"}


def test_accumulated_passes_equal_one_batch(make_loop):
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn((2, 4, 8, 8), generator=draw)
    rows, times, kept = (
        torch.tensor([0, 2]),
        torch.tensor([100, 700]),
        torch.zeros(2, dtype=torch.bool),
    )
    whole, parts = make_loop(torch.float64), make_loop(torch.float64)
    one, _ = whole.update(0, [Draws(rows, times, noise, kept)])
    each = [Draws(rows[n : n + 1], times[n : n + 1], noise[n : n + 1], kept[:1]) for n in (0, 1)]
    two, _ = parts.update(0, each)
    assert float(one) == pytest.approx(float(two), rel=1e-12)
    start = values(make_loop(torch.float64))
    assert float((values(whole) - start).norm()) > 0
    assert float((values(whole) - values(parts)).norm() / (values(whole) - start).norm()) < 1e-9


def test_a_sample_has_one_of_the_orders_of_its_caption(make_loop):
    captions = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    material = replace(make_loop().material, captions=captions)
    asked = Draws(
        rows=torch.tensor([0, 2, 1, 1]),
        times=torch.zeros(4),
        noise=torch.zeros(4),
        empty=torch.tensor([False, False, False, True]),
        orders=torch.tensor([0.0, 0.5, 0.99, 0.5]),
    )
    assert material.rows(asked).tolist() == [1, 8, 6, 0]
    assert material.rows(replace(asked, orders=None)).tolist() == [1, 7, 4, 0]


def test_a_dropped_caption_is_the_empty_one(make_loop):
    loop = make_loop()
    noise = torch.randn((1, 4, 8, 8), generator=torch.Generator().manual_seed(3))
    row, time = torch.tensor([0]), torch.tensor([400])
    with torch.no_grad():
        dropped = loop.material.loss(Draws(row, time, noise, torch.tensor([True])))
        kept = loop.material.loss(Draws(row, time, noise, torch.tensor([False])))
        loop.material.captions[0] = 0
        empty = loop.material.loss(Draws(row, time, noise, torch.tensor([False])))
    assert dropped == empty
    assert dropped != kept


def test_what_is_told_and_kept(make_loop):
    loop = make_loop(
        schedule={"steps": 4}, loss={"validation_every": 2}, saving={"every": 3, "state_every": 2}
    )
    teller, shelf = Teller(), Shelf()
    assert loop.run(teller, shelf) == "done"
    assert [(step, total) for step, total, *_ in teller.steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(math.isfinite(loss) and loss > 0 for _, _, loss, _, _ in teller.steps)
    assert teller.steps[0][3] == 1e-4
    assert teller.steps[-1][4] == 0.0
    assert teller.steps[0][4] > 0
    assert [step for step, _ in teller.validations] == [0, 2, 4]
    assert loop.validations == dict(teller.validations)
    assert (shelf.networks, shelf.states, teller.saves) == ([3], [2], [3])


@pytest.mark.parametrize(("size", "batch", "most"), [(512, 2, 2), (64, 2, 16), (512, 32, 16)])
def test_a_validation_takes_no_more_at_once_than_a_step_or_a_picture_of_512(
    make_loop, size, batch, most
):
    """16 pictures of 1024 pixels are more than the whole of a step with SDXL, and the plan of the memory is that of a step."""
    loop = make_loop(data={"size": size}, schedule={"batch": batch}, loss={"validation_draws": 20})
    passes, whole = [], loop.material.denoise

    def seen(noisy, *rest):
        passes.append(len(noisy))
        return whole(noisy, *rest)

    loop.material = replace(loop.material, denoise=seen)
    loss = loop.validate()
    assert (max(passes), sum(passes)) == (most, 20)
    assert loss == pytest.approx(make_loop(loss={"validation_draws": 20}).validate(), rel=1e-6)


def test_watching_changes_nothing(make_loop):
    plain = make_loop(schedule={"steps": 3}, loss={"validation_draws": 0})
    watched = make_loop(schedule={"steps": 3}, loss={"validation_every": 1})
    plain.run(Teller(), Shelf())
    watched.run(Teller({1: "save"}), Shelf())
    assert torch.equal(values(plain), values(watched))


@pytest.mark.parametrize(
    ("asked", "ending", "networks"),
    [("stop", "stopped", [2]), ("pause", "paused", []), ("save", "done", [2])],
)
def test_commands(make_loop, asked, ending, networks):
    loop, teller, shelf = make_loop(schedule={"steps": 3}), Teller({2: asked}), Shelf()
    assert loop.run(teller, shelf) == ending
    assert loop.done == (3 if ending == "done" else 2)
    assert shelf.states == [2]
    assert shelf.networks == networks
    assert len(teller.answers) == 1
    assert "after step 2" in teller.answers[0]


def test_a_loss_that_is_not_finite_ends_the_run_before_anything_is_kept(make_loop):
    loop, shelf = make_loop(saving={"state_every": 1}, loss={"validation_draws": 0}), Shelf()
    loop.material.latents[:] = math.inf
    with pytest.raises(LoraError, match="at step 1: lower the rates"):
        loop.run(Teller(), shelf)
    assert shelf.states == []


def test_the_pace_is_told_once_after_the_first_steps(make_loop):
    loop, teller = make_loop(schedule={"steps": 7, "batch": 2, "accumulate": 2}), Teller()
    begun = time.monotonic()
    loop.run(teller, Shelf())
    took = time.monotonic() - begun
    ((step, seconds, per_epoch, total, sentence),) = teller.paces
    assert (step, per_epoch, total) == (6, 1, 7)  # three pictures, four in each step
    assert took / 100 < (step - WARM_UP_STEPS) * seconds < took
    assert sentence == "Slow because: it is computed on a CPU; each step has 2 forward passes."
