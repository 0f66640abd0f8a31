"""Samples: the sampler finds what a denoiser knows, for every objective; they are the same each time and never end a training."""

import numpy
import pytest
import torch
from PIL import Image

from lib_lora.families.table import Latent
from lib_lora.train.config_outputs import SamplesConfig
from lib_lora.train.objective import OBJECTIVES, mixed
from lib_lora.train.preview import Preview, sampling_times, solve

LATENT = Latent(channels=4, scale=1.0)


class Noter:
    """A watcher that remembers samples and notes."""

    def __init__(self):
        self.samples, self.notes, self.stages = [], [], []

    def stage(self, name, step=0, total=0):
        self.stages.append((name, step, total))

    def sample(self, file, step, prompt, seed):
        self.samples.append((file, step, prompt, seed))

    def note(self, sentence):
        self.notes.append(sentence)


class Colours(torch.nn.Module):
    """An autoencoder whose picture is the first three channels of its latents."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def decode(self, latents):
        self.sample = latents[:, :3]
        return self


def knowing(objective, known):
    """Return a denoiser that knows what picture its noisy latents are of: known[row], (texts, channels, height, width)."""

    def predict(noisy, times, rows):
        signal, spread = (level[:, None, None, None] for level in objective.levels(times))
        latents = known[rows].double()
        noise = (noisy - signal * latents) / spread
        return objective.target(latents, noise, signal, spread).to(noisy.dtype)

    return predict


def make(objective, predict, **config):
    asked = SamplesConfig(**{"prompts": "one\ntwo", "steps": 12, "guidance": 1.0, **config})
    return Preview(
        config=asked,
        size=16,
        objective=objective,
        latent=LATENT,
        predict=predict,
        vae=Colours(),
        device=torch.device("cpu"),
        compute=torch.float32,
    )


@pytest.fixture
def known():
    return torch.rand((3, 4, 2, 2), generator=torch.Generator().manual_seed(5)) * 2 - 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_denoiser_that_knows_the_picture_gives_it(name, known):
    objective = OBJECTIVES[name]
    preview = make(objective, knowing(objective, known))
    for row in (1, 2):
        found = torch.from_numpy(numpy.array(preview.picture(row, seed=3)))
        right = ((known[row, :3] + 1) * 127.5).round().byte().permute(1, 2, 0)
        assert torch.allclose(found.int(), right.int(), atol=1)
        assert not torch.allclose(found.int(), right.flip(0).int(), atol=5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_equations_give_back_latents_and_noise(name):
    draw = torch.Generator().manual_seed(1)
    latents, noise = (torch.randn((1, 4, 2, 2), generator=draw).double() for _ in range(2))
    objective = OBJECTIVES[name]
    for time in sampling_times(objective, 5):
        signal, spread = (float(level) for level in objective.levels(time[None]))
        level = (torch.tensor(signal), torch.tensor(spread))
        prediction = objective.target(latents, noise, *level)
        found = solve(objective, mixed(latents, noise, *level), prediction, signal, spread)
        torch.testing.assert_close(found[0], latents, rtol=0, atol=1e-4)
        torch.testing.assert_close(found[1], noise, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_walk_begins_at_pure_noise_and_goes_down(name):
    objective = OBJECTIVES[name]
    for count in (1, 2, 20):
        times = sampling_times(objective, count)
        signal, _ = objective.levels(times[:1])
        assert len(times) == count
        assert float(signal) < 0.07
        assert (times.diff() < 0).all()


def test_guidance_moves_from_the_negative_text_to_the_prompt(known):
    objective = OBJECTIVES["epsilon"]
    seen = []

    def predict(noisy, times, rows):
        seen.append(rows.tolist())
        return rows.to(noisy)[:, None, None, None].expand_as(noisy)

    preview = make(objective, predict, guidance=3.0)
    x = torch.zeros((1, 4, 2, 2))
    assert float(preview._guided(x, torch.tensor(5), 2).mean()) == 0 + 3.0 * (2 - 0)
    assert seen == [[0, 2]]


def test_samples_are_files_told_with_step_prompt_and_seed(known, tmp_path):
    objective, watcher = OBJECTIVES["v"], Noter()
    preview = make(objective, knowing(objective, known), seed=40)
    before = torch.random.get_rng_state()
    files = preview.draw(tmp_path / "samples", 30, watcher)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [file.name for file in files] == ["000030-00.png", "000030-01.png"]
    assert watcher.samples == [(str(files[0]), 30, "one", 40), (str(files[1]), 30, "two", 41)]
    assert watcher.stages == [("sampling", 0, 2), ("sampling", 1, 2)]
    with Image.open(files[1]) as picture:
        assert picture.size == (2, 2)
        assert picture.text["parameters"].startswith("two\n")
    first = [file.read_bytes() for file in files]
    assert preview.draw(tmp_path / "samples", 30, watcher) == files
    assert len(watcher.samples) == 2
    again = preview.draw(tmp_path / "again", 30, watcher)
    assert [file.read_bytes() for file in again] == first


def test_what_goes_wrong_is_a_note_and_the_other_samples_come(known, tmp_path):
    objective, watcher = OBJECTIVES["epsilon"], Noter()
    right = knowing(objective, known)

    def predict(noisy, times, rows):
        if 1 in rows:
            raise RuntimeError("out of memory")
        return right(noisy, times, rows)

    files = make(objective, predict).draw(tmp_path, 7, watcher)
    assert [file.name for file in files] == ["000007-01.png"]
    assert watcher.notes == ["No sample of 'one' after step 7: out of memory"]


def test_a_picture_of_no_numbers_is_told(known, tmp_path):
    watcher = Noter()
    preview = make(OBJECTIVES["epsilon"], lambda noisy, times, rows: noisy * float("nan"))
    assert preview.draw(tmp_path, 7, watcher) == []
    assert "came out as no numbers" in watcher.notes[0]
    assert list(tmp_path.iterdir()) == []
