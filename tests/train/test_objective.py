"""The noise schedule, the draws and the weights against what diffusers and the papers say."""

import torch
from diffusers import DDPMScheduler

from lib_lora.train.objective import (
    noise_levels,
    rows_at,
    snr_weights,
    stream,
    training_draws,
    validation_draws,
    weighted_loss,
)

SHAPE = torch.Size((5, 4, 8, 8))


def test_levels_are_those_of_the_scheduler():
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    torch.testing.assert_close(noise_levels().float(), scheduler.alphas_cumprod, rtol=1e-5, atol=0)


def test_min_snr_weights():
    weights = snr_weights(torch.tensor([0.5, 10 / 11, 1 / 11]), 5.0)
    # SNR is 1, 10 and 0.1: below gamma the weight is 1, above it gamma / SNR.
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 1.0]))
    assert torch.equal(snr_weights(noise_levels(), 0.0), torch.ones(1000, dtype=torch.float64))


def test_each_sample_is_averaged_before_it_is_weighted():
    prediction = torch.zeros(2, 1, 2, 2)
    noise = torch.tensor([1.0, 3.0])[:, None, None, None].expand(2, 1, 2, 2)
    loss = weighted_loss(prediction, noise, torch.tensor([1.0, 0.5]))
    assert float(loss) == (1.0 * 1.0 + 0.5 * 9.0) / 2


def test_draws_depend_on_seed_and_position_alone():
    rows = torch.arange(3)
    one, again = (training_draws(1, 7, rows, SHAPE, 0.5) for _ in range(2))
    other = training_draws(1, 8, rows, SHAPE, 0.5)
    assert torch.equal(one.noise, again.noise)
    assert torch.equal(one.times, again.times)
    assert not torch.equal(one.noise, other.noise)
    assert not torch.equal(one.noise, training_draws(2, 7, rows, SHAPE, 0.5).noise)


def test_draws_have_their_distributions():
    draws = training_draws(
        0, 0, torch.zeros(20_000, dtype=torch.long), torch.Size((1, 1, 2, 2)), 0.1
    )
    assert draws.times.min() == 0
    assert draws.times.max() == 999
    # Uniform over 0..999: mean 499.5, standard error 2; normal noise; one caption in ten left out.
    assert abs(float(draws.times.float().mean()) - 499.5) < 8
    assert abs(float(draws.noise.mean())) < 0.02
    assert abs(float(draws.noise.std()) - 1) < 0.02
    assert abs(float(draws.empty.float().mean()) - 0.1) < 0.01


def test_validation_draws_are_fixed_and_spread_over_all_timesteps():
    one, again = (validation_draws(3, 10, SHAPE) for _ in range(2))
    assert torch.equal(one.noise, again.noise)
    assert one.times.tolist() == [50, 150, 250, 350, 450, 550, 650, 750, 850, 950]
    assert sorted(one.rows.tolist()) == sorted([0, 1, 2, 3, 4] * 2)


def test_every_epoch_holds_every_row_once_in_a_new_order():
    rows = torch.tensor([0, 1, 1, 1, 2])
    walked = torch.cat([rows_at(0, start, 3, rows) for start in range(0, 15, 3)])
    epochs = walked.reshape(3, 5)
    assert epochs.sort(dim=1).values.tolist() == [[0, 1, 1, 1, 2]] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1
    assert torch.equal(rows_at(0, 0, 15, rows), walked)


def test_streams_differ_by_name():
    values = {torch.rand(1, generator=stream(0, name)).item() for name in ("a", "b", ("a", 1))}
    assert len(values) == 3
