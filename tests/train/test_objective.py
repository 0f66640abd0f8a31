"""The objectives, weights and draws against diffusers' schedulers and what the papers say, in float64."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

from lib_lora.errors import UsageError
from lib_lora.families.detect import FAMILIES
from lib_lora.train.objective import (
    OBJECTIVES,
    batch_at,
    mixed,
    noise_levels,
    objective_of,
    rows_at,
    stream,
    training_draws,
    validation_draws,
    weighted_loss,
)

SHAPE = (4, 8, 8)
EPSILON = OBJECTIVES["epsilon"]
MANY = 20_000
# Stable Diffusion's schedule in NumPy's float64, and its signal to noise ratio.
KEPT = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
SNR = KEPT / (1 - KEPT)
TIMES = torch.tensor([0, 1, 200, 499, 700, 998, 999])


def ddpm(**options):
    return DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", **options
    )


def column(values):
    return values[:, None, None, None]


@pytest.fixture(scope="module")
def pair():
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn((7, *SHAPE), generator=draw) for _ in range(2))


def test_levels_are_those_of_the_scheduler():
    torch.testing.assert_close(noise_levels().float(), ddpm().alphas_cumprod, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["epsilon", "v"])
def test_noisy_latents_and_targets_are_the_schedulers(name, pair):
    objective, (latents, noise) = OBJECTIVES[name], pair
    levels = [column(each).float() for each in objective.levels(TIMES)]
    scheduler = ddpm()
    noisy = scheduler.add_noise(latents, noise, TIMES)
    torch.testing.assert_close(mixed(latents, noise, *levels), noisy, rtol=1e-4, atol=1e-5)
    targets = {"epsilon": noise, "v": scheduler.get_velocity(latents, noise, TIMES)}
    found = objective.target(latents, noise, *levels)
    torch.testing.assert_close(found, targets[name], rtol=1e-4, atol=1e-5)
    # A v of the other sign, or the other's target, is far off.
    other = targets["v" if name == "epsilon" else "epsilon"]
    assert float((found - other).abs().max()) > 0.5
    assert float((found + targets[name]).abs().max()) > 0.5


def test_a_flow_goes_from_latents_to_noise_and_its_target_is_noise_minus_latents(pair):
    latents, noise = pair
    flow = OBJECTIVES["flow"]
    times = torch.tensor([0.0, 1.0, 250.0, 500.0, 750.0, 999.0, 1000.0])
    signal, spread = (column(each).float() for each in flow.levels(times))
    noisy = mixed(latents, noise, signal, spread)
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0)
    for n, time in enumerate(times.tolist()):
        scheduler.timesteps, scheduler.sigmas = torch.tensor([time]), torch.tensor([time / 1000])
        expected = scheduler.scale_noise(latents[n], torch.tensor([time]), noise[n])
        torch.testing.assert_close(noisy[n], expected, rtol=1e-5, atol=1e-6)
    target = flow.target(latents, noise, signal, spread)
    # Walking the whole way along the target brings noise back to the latents: x - sigma v = z.
    torch.testing.assert_close(noisy - spread * target, latents, rtol=1e-4, atol=1e-5)
    assert float((noisy + spread * target - latents).abs().max()) > 1
    # Its error counts alike at all times: no weight of sigma squared hides in it.
    assert flow.weights(times.double()[1:-1], 5.0).tolist() == [1.0] * 5


def test_min_snr_weights():
    """min(SNR, gamma) in the space of the latents, divided by what an error there is in that of the prediction."""
    snr, weights = torch.from_numpy(SNR), {}
    for name in ("epsilon", "v"):
        weights[name] = OBJECTIVES[name].weights(torch.arange(1000), 5.0)
    expected = {"epsilon": np.minimum(SNR, 5) / SNR, "v": np.minimum(SNR, 5) / (SNR + 1)}
    for name, values in expected.items():
        torch.testing.assert_close(weights[name], torch.from_numpy(values), rtol=1e-9, atol=0)
    # What else is in use: the raw ratio, gamma / SNR for v, min(SNR + 1, gamma) for v. All are told apart.
    assert float((weights["epsilon"] - snr).abs().max()) > 100
    assert float((weights["v"] - (5 / snr).clamp(max=1)).abs().max()) > 0.5
    assert float((weights["v"] - (snr + 1).clamp(max=5) / (snr + 1)).abs().max()) > 0.5
    assert torch.equal(EPSILON.weights(torch.arange(1000), 0.0), torch.ones(1000).double())


def test_a_v_error_is_worth_snr_plus_one_errors_of_the_latents(pair):
    """|v' - v|^2 = (SNR + 1) |z' - z|^2 (Hang et al., section 3.4), from which v's weights follow."""
    latents, noise = (each.double() for each in pair)
    v = OBJECTIVES["v"]
    signal, spread = (column(each) for each in v.levels(TIMES))
    noisy = mixed(latents, noise, signal, spread)
    target = v.target(latents, noise, signal, spread)
    predicted = target + 0.3
    recovered = signal * noisy - spread * predicted
    ratio = (predicted - target).square().mean((1, 2, 3)) / (recovered - latents).square().mean(
        (1, 2, 3)
    )
    torch.testing.assert_close(ratio, torch.from_numpy(SNR[TIMES.numpy()] + 1), rtol=1e-6, atol=0)


def test_zero_terminal_snr_is_the_papers_and_gives_no_nan():
    # Lin et al., algorithm 1; diffusers' own, in float32.
    rescaled = ddpm(rescale_betas_zero_snr=True, prediction_type="v_prediction").alphas_cumprod
    levels = noise_levels(zero_terminal=True)
    torch.testing.assert_close(levels[:-1].float(), rescaled[:-1], rtol=1e-2, atol=1e-6)
    assert levels[-1] == 0
    assert levels[0] == pytest.approx(KEPT[0], rel=1e-12)
    v = objective_of("v", zero_terminal=True)
    signal, spread = v.levels(torch.tensor([999]))
    assert (float(signal), float(spread)) == (0.0, 1.0)
    weights = v.weights(torch.arange(1000), 5.0)
    assert weights.isfinite().all()
    assert float(weights[-1]) == 0.0
    # 0 / 0 where epsilon would be predicted there: its weight is 1, as for every SNR below gamma.
    assert EPSILON.weight(torch.zeros(1), 5.0).tolist() == [1.0]
    for name in ("epsilon", "flow"):
        with pytest.raises(UsageError, match="needs a model that predicts v"):
            objective_of(name, zero_terminal=True)


def test_flow_times_are_drawn_logit_normally_and_shifted():
    draws = training_draws(0, 0, torch.zeros(MANY, dtype=torch.long), (1, 1, 1), OBJECTIVES["flow"])
    sigma = draws.times / 1000
    assert draws.times.dtype == torch.float64
    # Quantiles of a logit-normal(0, 1), each moved by s / (1 + (s - 1) q) times itself with s = 3.
    for share, normal in ((0.1, -1.2815516), (0.5, 0.0), (0.9, 1.2815516)):
        plain = 1 / (1 + math.exp(-normal))
        shifted = 3 * plain / (1 + 2 * plain)
        assert float(sigma.quantile(share)) == pytest.approx(shifted, abs=0.01)
    assert float(sigma.median()) == pytest.approx(0.75, abs=0.01)
    # The shift of diffusers' scheduler.
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0)
    assert float(scheduler.sigmas[499]) == pytest.approx(3 * 0.501 / (1 + 2 * 0.501), abs=1e-5)
    spaced = OBJECTIVES["flow"].spaced(MANY) / 1000
    assert float(spaced.median()) == pytest.approx(0.75, abs=1e-4)
    assert bool((spaced.diff() > 0).all())


def test_each_sample_is_averaged_before_it_is_weighted():
    prediction = torch.zeros(2, 1, 2, 2)
    noise = torch.tensor([1.0, 3.0])[:, None, None, None].expand(2, 1, 2, 2)
    loss = weighted_loss(prediction, noise, torch.tensor([1.0, 0.5]))
    assert float(loss) == (1.0 * 1.0 + 0.5 * 9.0) / 2


def test_every_family_has_its_objective():
    assert {family.objective for family in FAMILIES} == set(OBJECTIVES)
    assert {family.id for family in FAMILIES if family.objective == "flow"} == {"sd3"}
    assert {family.id for family in FAMILIES if family.objective == "v"} == {"sd2"}


def test_draws_depend_on_seed_and_position_alone():
    rows = torch.arange(3)
    one, again = (training_draws(1, 7, rows, SHAPE, EPSILON, 0.5) for _ in range(2))
    other = training_draws(1, 8, rows, SHAPE, EPSILON, 0.5)
    assert torch.equal(one.noise, again.noise)
    assert torch.equal(one.times, again.times)
    assert not torch.equal(one.noise, other.noise)
    assert not torch.equal(one.noise, training_draws(2, 7, rows, SHAPE, EPSILON, 0.5).noise)


def test_draws_have_their_distributions():
    rows = torch.zeros(MANY, dtype=torch.long)
    draws = training_draws(0, 0, rows, (1, 2, 2), EPSILON, 0.1)
    assert draws.times.min() == 0
    assert draws.times.max() == 999
    # Uniform over 0..999: mean 499.5, standard error 2; normal noise; one caption in ten left out.
    assert abs(float(draws.times.float().mean()) - 499.5) < 8
    assert abs(float(draws.noise.mean())) < 0.02
    assert abs(float(draws.noise.std()) - 1) < 0.02
    assert abs(float(draws.empty.float().mean()) - 0.1) < 0.01


def test_a_noise_offset_moves_whole_channels_of_the_noise_that_is_also_the_target():
    rows = torch.zeros(2000, dtype=torch.long)
    plain = training_draws(0, 0, rows, (4, 8, 8), EPSILON)
    moved = training_draws(0, 0, rows, (4, 8, 8), EPSILON, offset=0.1)
    assert torch.equal(moved.times, plain.times)
    moves = moved.noise - plain.noise
    assert float(moves.std(dim=(2, 3)).max()) < 1e-6
    assert float(moves.mean(dim=(2, 3)).std()) == pytest.approx(0.1, rel=0.05)
    assert EPSILON.target(plain.noise, moved.noise, *[torch.ones(1)] * 2) is moved.noise


def test_validation_draws_are_fixed_and_spread_over_all_timesteps():
    (one,), (again,) = (validation_draws(3, 10, [SHAPE] * 5, EPSILON) for _ in range(2))
    assert torch.equal(one.noise, again.noise)
    assert one.times.tolist() == [50, 150, 250, 350, 450, 550, 650, 750, 850, 950]
    assert sorted(one.rows.tolist()) == sorted([0, 1, 2, 3, 4] * 2)


def test_validation_draws_of_different_shapes_come_apart():
    shapes = [(4, 8, 8), (4, 4, 16), (4, 8, 8)]
    parts = validation_draws(3, 60, shapes, EPSILON)
    assert sum(len(part.rows) for part in parts) == 60
    assert max(len(part.rows) for part in parts) == 16
    for part in parts:
        assert {shapes[row] for row in part.rows.tolist()} == {tuple(part.noise.shape[1:])}
    times = sorted(time for part in parts for time in part.times.tolist())
    assert times == EPSILON.spaced(60).tolist()


def test_every_epoch_holds_every_row_once_in_a_new_order():
    rows = torch.tensor([0, 1, 1, 1, 2])
    walked = torch.cat([rows_at(0, start, 3, rows) for start in range(0, 15, 3)])
    epochs = walked.reshape(3, 5)
    assert epochs.sort(dim=1).values.tolist() == [[0, 1, 1, 1, 2]] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1
    assert torch.equal(rows_at(0, 0, 15, rows), walked)


def test_a_batch_is_of_one_bucket_and_every_bucket_has_its_turns():
    buckets = [torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 6]), torch.tensor([7])]
    # Two full batches of two of the first bucket and one that begins its next epoch, one of the second, one of the third.
    rounds = [[batch_at(0, 5 * n + place, 2, buckets) for place in range(5)] for n in range(4)]
    for batches in rounds:
        owners = [next(n for n, b in enumerate(buckets) if rows[0] in b) for rows in batches]
        assert sorted(owners) == [0, 0, 0, 1, 2]
        for owner, rows in zip(owners, batches, strict=True):
            assert len(rows) == 2
            assert set(rows.tolist()) <= set(buckets[owner].tolist())
    orders = {tuple(tuple(rows.tolist()) for rows in batches) for batches in rounds}
    assert len(orders) == 4
    first = [int(row) for batches in rounds for rows in batches for row in rows if row < 5]
    assert all(sorted(first[n : n + 5]) == [0, 1, 2, 3, 4] for n in (0, 5, 10, 15))


def test_one_bucket_is_walked_as_an_endless_list():
    rows = torch.tensor([3, 4, 4, 9, 2])
    walked = torch.cat([batch_at(5, position, 2, [rows]) for position in range(10)])
    assert torch.equal(walked, rows_at(5, 0, 20, rows))


def test_streams_differ_by_name():
    values = {torch.rand(1, generator=stream(0, name)).item() for name in ("a", "b", ("a", 1))}
    assert len(values) == 3
