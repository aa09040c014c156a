"""Noise of deployments: exactly the discrete Gaussian, on a grid, never the same twice."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from wardround.privacy.noise import (
    STEPS_PER_SIGMA,
    SystemNoise,
    clip_and_add_system_noise,
    discrete_gaussian,
    system_normal,
)


def repeatable(seed):
    """Random bytes that are the same in every run of the tests."""
    return np.random.default_rng(seed).bytes


def silence(count):
    """Bytes of which every draw is zero: sizes and signs from ones, acceptance from zeros."""
    return b"\xff" * (2 * count // 3) + bytes(count // 3)


def exact(sigma, most):
    """P(X = k) for k from −most to most: e^(−k²/2σ²), normalised."""
    values = np.arange(-most, most + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return values, weights / weights.sum()


@pytest.mark.parametrize("sigma", [1.0, 1.3, 2.0, math.pi, 7.5, 40.0])
def test_draws_have_the_exact_distribution(sigma):
    draws = discrete_gaussian(200_000, sigma, repeatable(int(10 * sigma)))
    values, probabilities = exact(sigma, math.ceil(10 * sigma))
    counts = np.array([(draws == value).sum() for value in values])
    assert counts.sum() == len(draws)
    common = probabilities * len(draws) >= 5  # what is rarer is counted together
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * len(draws)
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_a_wrong_distribution_would_be_noticed():
    """The test above can tell: a rounded normal of the same deviation is not the discrete Gaussian for small σ."""
    draws = np.rint(np.random.default_rng(0).normal(0, 1.0, 200_000)).astype(int)
    values, probabilities = exact(1.0, 5)
    counts = np.array([(draws == value).sum() for value in values])
    assert stats.chisquare(counts, probabilities * counts.sum()).pvalue < 1e-10


def test_fine_grids_look_like_the_normal_distribution():
    draws = discrete_gaussian(100_000, float(STEPS_PER_SIGMA), repeatable(3)) / STEPS_PER_SIGMA
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws[1:] @ draws[:-1]) / len(draws) < 0.02  # no draw depends on the one before


@pytest.mark.parametrize("sigma", [0.5, 0.0, -1.0, math.nan, math.inf, 2.0**41])
def test_scales_that_cannot_be_are_errors(sigma):
    with pytest.raises(ValueError, match="sigma must be"):
        discrete_gaussian(1, sigma)


def test_nothing_is_ever_drawn_twice():
    rows = [discrete_gaussian(50, 100.0) for _ in range(20)]
    assert len({row.tobytes() for row in rows}) == 20
    assert len({system_normal() for _ in range(50)}) > 45
    zero = torch.zeros(30)
    sent = [clip_and_add_system_noise(zero, 1.0, 1.0) for _ in range(20)]
    assert len({tuple(row.tolist()) for row in sent}) == 20
    torch.manual_seed(7)
    np.random.seed(7)
    first = clip_and_add_system_noise(zero, 1.0, 1.0)
    torch.manual_seed(7)
    np.random.seed(7)
    assert not torch.equal(first, clip_and_add_system_noise(zero, 1.0, 1.0))


class TestAnUpdate:
    def test_has_the_noise_that_was_asked_for(self):
        for clip, multiplier in ((1.0, 1.0), (0.01, 3.0), (50.0, 0.5)):
            sent = clip_and_add_system_noise(torch.zeros(40_000, dtype=torch.float64), clip, multiplier)
            assert sent.std() == pytest.approx(multiplier * clip, rel=0.03)
            assert abs(sent.mean()) < 0.03 * multiplier * clip

    def test_is_clipped(self):
        row = torch.full((10_000,), 3.0, dtype=torch.float64)
        sent = clip_and_add_system_noise(row, 2.0, 1e-3)
        clipped = row * (2.0 / row.norm())
        assert (sent - clipped).abs().max() < 6 * 2e-3
        assert float(sent.mean()) == pytest.approx(float(clipped[0]), rel=0.01)
        short = torch.full((100,), 0.01, dtype=torch.float64)
        assert (clip_and_add_system_noise(short, 2.0, 1e-6) - short).abs().max() < 1e-4

    def test_lies_on_a_grid_that_does_not_depend_on_it(self):
        """What values are possible tells nothing: the same multiples of one step for every update."""
        step = 0.7 * 1.3 / STEPS_PER_SIGMA
        for row in (torch.zeros(500), torch.randn(500), torch.full((500,), 1e-9)):
            whole = clip_and_add_system_noise(row.double(), 0.7, 1.3).numpy() / step
            assert np.abs(whole - np.rint(whole)).max() < 1e-6

    def test_is_not_longer_after_rounding(self):
        row = torch.randn(1000, dtype=torch.float64)
        silent = clip_and_add_system_noise(row, 1.0, 1.0, silence)
        assert silent.norm() <= 1.0
        assert (silent - row / row.norm()).abs().max() <= 1 / STEPS_PER_SIGMA

    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_that_is_not_finite_counts_as_zero(self, bad):
        """Where the infinities are would tell what no noise covers."""
        row = torch.ones(2000)
        row[17] = bad
        sent = clip_and_add_system_noise(row, 1.0, 1.0)
        assert torch.isfinite(sent).all()
        assert sent.std() == pytest.approx(1.0, rel=0.15)
        assert abs(float(sent[17])) < 7

    def test_keeps_its_dtype(self):
        for dtype in (torch.float32, torch.float64):
            assert clip_and_add_system_noise(torch.ones(3, dtype=dtype), 1.0, 1.0).dtype == dtype


class TestSystemNoise:
    def test_noise_is_a_multiple_of_the_sensitivity_after_rounding(self):
        """√D grid steps more than the clip, for the coordinates that rounding can move apart."""
        size, clip, multiplier = 200_000, 0.5, 3.0
        noisy = SystemNoise(repeatable(5)).add_gaussian(
            torch.zeros(size, dtype=torch.float64), clip, multiplier
        )
        step = multiplier * clip / STEPS_PER_SIGMA
        wanted = multiplier * (clip + math.sqrt(size) * step)
        assert noisy.std() == pytest.approx(wanted, rel=0.01)
        assert wanted > multiplier * clip

    def test_values_are_kept_to_the_grid(self):
        values = torch.randn(100, dtype=torch.float64)
        noisy = SystemNoise(silence).add_gaussian(values, 1.0, 1.0)
        assert (noisy - values).abs().max() <= 1 / STEPS_PER_SIGMA

    def test_uniform_numbers_are_uniform_and_never_zero(self):
        drawn = SystemNoise().uniform(100_000).numpy()
        assert drawn.min() > 0
        assert drawn.max() <= 1
        assert stats.kstest(drawn, "uniform").pvalue > 1e-6
        assert SystemNoise(lambda count: bytes(count)).uniform(1).item() == 2.0**-53
        assert SystemNoise(lambda count: b"\xff" * count).uniform(1).item() == 1.0
