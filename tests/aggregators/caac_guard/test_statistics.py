"""Each statistic of caac-guard, derived by hand."""

import math

import pytest
import torch

from wardround.aggregators._math.kernels import squared_distances
from wardround.aggregators.caac_guard.statistics import (
    cosine_gaps,
    excess_norms,
    in_step,
    isolation,
    same_norm_neighbours,
    size_slope,
    twins,
    usual_log_norms,
)
from wardround.updates import Updates


def gaps_of(rows):
    updates = Updates(rows)
    return cosine_gaps(squared_distances(updates), updates.norms)


def honest(n, d, seed=0, common=1.0):
    return common + torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gaps_are_one_minus_the_cosine_and_keep_the_digits_of_near_twins():
    rows = torch.tensor(
        [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-1.0, 0.0, 0.0], [3.0, 3e-6, 0.0], [0.0, 0.0, 0.0]]
    )
    gaps = gaps_of(rows.double())
    assert gaps[0, :3].tolist() == pytest.approx([0, 1, 2])
    assert gaps[0, 3].item() == pytest.approx(1e-12 / 2, rel=1e-3)  # 1 − cos(1e-6)
    assert gaps[4, :4].tolist() == [1.0] * 4


def test_a_random_row_is_isolated_and_nobody_else():
    rows = honest(20, 2000)
    noise = torch.randn(3, 2000, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    rows[:3] = noise
    updates = Updates(rows)
    scores = isolation(gaps_of(rows), updates.norms, 2000)
    assert (scores > 1).tolist() == [True] * 3 + [False] * 17
    # By hand: D/(N−1) Σ cos², against 1 + 5·sqrt(2/(N−1)).
    unit = rows / rows.norm(dim=1, keepdim=True)
    squares = (unit @ unit.T).fill_diagonal_(0).square().sum(1) * 2000 / 19
    assert scores[0].item() == pytest.approx((1 + 5 * math.sqrt(2 / 19)) / squares[0].item())


def test_where_everyone_is_noise_nobody_is_isolated():
    rows = torch.randn(20, 2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert isolation(gaps_of(rows), torch.ones(20), 2000).max() == 0


def test_twins_stand_out_by_the_usual_distance_to_the_nearest():
    rows = honest(10, 500)
    rows[1] = rows[0] + 1e-3 * rows[2]
    gaps = gaps_of(rows)
    scores = twins(gaps, 0.1, torch.zeros(10, dtype=torch.bool))
    assert (scores > 1).nonzero().tolist() == [[0, 1], [1, 0]]
    nearest = (gaps + 3 * torch.eye(10)).min(1).values
    assert scores[0, 1].item() == pytest.approx((0.1 * nearest.quantile(0.5) / gaps[0, 1]).item())


def test_a_few_far_rows_do_not_make_twins_of_the_others():
    rows = honest(20, 2000)
    rows[:8] = torch.randn(8, 2000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    isolated = torch.arange(20) < 8
    assert twins(gaps_of(rows), 0.1, isolated).max() < 1


def test_norms_are_compared_among_clients_of_a_size():
    samples = torch.tensor([100.0, 200.0, 300.0, 400.0, 500.0, 800.0, 1000.0, 1600.0])
    log_norms = 0.9 * samples.log()
    assert size_slope(log_norms, samples.log()) == pytest.approx(0.9)
    log_norms[0] += math.log(10)  # a small client with the norm of a large one
    scores = excess_norms(log_norms - usual_log_norms(log_norms, samples), 4.7, (3.0, 6.0))
    assert (scores > 1).tolist() == [True] + [False] * 7


def test_many_clients_of_a_single_step_do_not_hide_that_norms_grow_with_size():
    samples = torch.tensor([20.0 + i for i in range(10)] + [64.0, 128.0, 192.0, 256.0, 512.0])
    steps = (samples / 32).ceil()
    slope = size_slope(steps.log(), samples.log())
    assert 0.5 < slope < 1
    usual = usual_log_norms(steps.log(), samples)
    assert excess_norms(steps.log() - usual, 4.7, (2.5, 4.0)).max() < 1


def test_many_liars_cannot_hide_in_the_spread_they_make():
    """8 of 20 send ten times too much: the limit is at most a factor of six above the median."""
    log_norms = 0.05 * torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_norms[:8] += math.log(10)
    excess = log_norms - usual_log_norms(log_norms, torch.ones(20))
    assert (excess_norms(excess, 50.0, (3.0, 6.0)) > 1).tolist() == [True] * 8 + [False] * 12


def test_a_false_count_explains_no_more_than_a_slope_of_one():
    log_norms, samples = torch.zeros(6), torch.tensor([1e9, 1.0, 2.0, 3.0, 4.0, 5.0])
    log_norms[0] = 100.0
    assert 0 <= size_slope(log_norms, samples.log()) <= 1


def test_turning_in_step_counts_and_turning_alone_does_not():
    together = torch.linspace(0, 0.8, 5).repeat(2, 1)
    alone = torch.linspace(0.8, 0.4, 5)[None]
    scores = in_step(torch.cat([together, alone, torch.zeros(2, 5)]).double(), limit=0.25, tolerance=0.06)
    assert scores.tolist() == pytest.approx([0.4 / 0.25, 0.4 / 0.25, 0, 0, 0])


def test_rows_drawn_around_one_of_the_same_norm_stand_out_and_honest_ones_do_not():
    generator = torch.Generator().manual_seed(3)
    rows = honest(20, 500, common=0.5) * (1 + 3 * torch.rand(20, 1, generator=generator, dtype=torch.float64))
    nobody = torch.zeros(20, dtype=torch.bool)
    norms = rows.norm(dim=1)
    assert same_norm_neighbours(gaps_of(rows), norms.log(), nobody).max() <= 1
    shared = torch.randn(500, generator=generator, dtype=torch.float64)
    drawn = shared + 0.3 * torch.randn(5, 500, generator=generator, dtype=torch.float64)
    rows[:5] = drawn * norms.quantile(0.7) / drawn.norm(dim=1, keepdim=True)
    scores = same_norm_neighbours(gaps_of(rows), rows.norm(dim=1).log(), nobody)
    assert scores[:5].tolist() == [2.0] * 5  # four others each
    assert scores[5:].max() <= 1
    rows[:5] *= torch.linspace(0.5, 2, 5, dtype=torch.float64)[:, None]  # lengths as different as honest ones
    assert same_norm_neighbours(gaps_of(rows), rows.norm(dim=1).log(), nobody).max() <= 1
