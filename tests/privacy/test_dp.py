import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from wardround.privacy.dp import ProfileNoise, analytic_sigma, classical_sigma, clip_and_noise


def test_the_documents_formula():
    assert classical_sigma(2.0, 1e-5) == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 2)


@given(st.floats(0.05, 8.0), st.floats(1e-9, 1e-2))
def test_the_analytic_calibration_spends_exactly_delta(epsilon, delta):
    """Against the definition of the privacy profile of the Gaussian mechanism, by scipy's own distribution."""
    sigma = analytic_sigma(epsilon, delta)
    spent = norm.cdf(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * norm.cdf(
        -1 / (2 * sigma) - epsilon * sigma
    )
    assert spent == pytest.approx(delta, rel=1e-4)


@given(st.floats(0.05, 1.0), st.floats(1e-9, 1e-3))
def test_the_analytic_noise_is_never_more_than_the_formula_needs(epsilon, delta):
    assert analytic_sigma(epsilon, delta) <= classical_sigma(epsilon, delta)


def test_an_update_is_clipped_and_gets_noise_of_the_right_size():
    row = torch.full((50_000,), 1.0)
    sent = clip_and_noise(row, clip=2.0, sigma=1.5, seed=0, round=1, client="a")
    noise = sent - row * (2.0 / row.norm())
    assert noise.std() == pytest.approx(3.0, rel=0.02)
    assert abs(noise.mean()) < 0.06
    short = torch.zeros(10)
    short[0] = 1e-3
    assert torch.equal(clip_and_noise(short, 2.0, 0.0, 0, 1, "a"), short)


def test_noise_differs_by_round_and_client_and_repeats_with_the_seed():
    row = torch.zeros(5)
    draws = [clip_and_noise(row, 1.0, 1.0, 0, round, client) for round in (1, 2) for client in "ab"]
    assert len({tuple(draw.tolist()) for draw in draws}) == 4
    assert torch.equal(draws[0], clip_and_noise(row, 1.0, 1.0, 0, 1, "a"))


@pytest.mark.slow
def test_profile_noise_has_the_size_that_its_sensitivity_asks_for():
    noise = ProfileNoise(epsilon=2.0, delta=1e-5, clip=4.0)
    normal = np.random.default_rng(0).normal
    blurred = np.array([noise.blur(100.0, 0.0, normal) for _ in range(20_000)])
    spread = noise.multiplier * math.sqrt(2) * 4.0
    assert blurred.min() >= -1  # cosines
    assert blurred[:, 0].min() == 0  # norms
    upper = blurred[blurred[:, 0] > 4.0, 0] - 4.0  # a norm of 100 counts as the clip
    assert np.sqrt((upper**2).mean()) == pytest.approx(spread, rel=0.03)
    assert noise.blur(1.0, None, normal)[1] is None


@pytest.mark.slow
def test_profile_noise_covers_a_cosine_that_turns_from_one_end_to_the_other():
    """The deviations, measured, put the two most different clients 1/multiplier apart: what (ε, δ) was computed for."""
    noise = ProfileNoise(
        epsilon=200.0, delta=1e-5, clip=4.0
    )  # little noise: next to nothing is cut off at the ends
    normal = np.random.default_rng(1).normal
    norm, cosine = np.array([noise.blur(2.0, 0.0, normal) for _ in range(40_000)]).std(0)
    assert norm == pytest.approx(noise.multiplier * math.sqrt(2) * 4.0, rel=0.02)
    assert cosine == pytest.approx(noise.multiplier * math.sqrt(2) * 2.0, rel=0.02)
    widest = np.hypot((4.0 - 0.0) / norm, (1.0 - -1.0) / cosine)
    assert widest == pytest.approx(1 / noise.multiplier, rel=0.02)


@pytest.mark.parametrize("norm", [-1.0, 0.0, 3.0, 1e30])
@pytest.mark.parametrize("cosine", [-1.5, -1.0, 0.3, 1.5])
def test_statistics_out_of_range_are_brought_back_before_noise(norm, cosine):
    """Or one client could move them by more than the sensitivity."""
    noise = ProfileNoise(epsilon=2.0, delta=1e-5, clip=4.0)
    silent = noise.blur(norm, cosine, lambda: 0.0)
    assert silent == (min(max(norm, 0), 4.0), min(max(cosine, -1), 1))


def test_profile_noise_is_the_draw_times_the_spread():
    """Two statistics are released together, so each gets √2 times the noise of one."""
    noise = ProfileNoise(epsilon=2.0, delta=1e-5, clip=4.0)
    norm, cosine = noise.blur(3.0, 0.5, lambda: 0.01)
    assert norm == pytest.approx(3.0 + 0.01 * 2**0.5 * noise.multiplier * 4.0)
    assert cosine == pytest.approx(0.5 + 0.01 * 2**0.5 * noise.multiplier * 2.0)
