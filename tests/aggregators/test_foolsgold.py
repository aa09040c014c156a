"""FoolsGold against the loops of its pseudocode, on histories."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators.foolsgold import foolsgold_values


def by_loops(history):
    """Weights by the paper's pseudocode, client by client."""
    n = len(history)
    unit = history / np.linalg.norm(history, axis=1, keepdims=True)
    cs = unit @ unit.T - np.eye(n)
    most = cs.max(1)
    for i in range(n):
        for j in range(n):
            if i != j and most[i] < most[j]:
                cs[i, j] *= most[i] / most[j]
    wv = np.clip(1 - cs.max(1), 0, 1)
    wv = wv / wv.max()
    wv[wv == 1] = 0.99
    with np.errstate(divide="ignore"):
        wv = np.log(wv / (1 - wv)) + 0.5
    return np.clip(wv, 0, 1)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_against_the_pseudocode_over_rounds(n):
    rng = np.random.default_rng(n)
    rule, history = aggregators.create("foolsgold"), 0
    for t in (1, 2, 3):
        rows = rng.normal(size=(n, 15)) + 0.3
        history = history + rows
        expected = by_loops(history)
        out = rule.aggregate(Updates(rows), t)
        np.testing.assert_allclose(out.weights.numpy(), expected / expected.sum(), rtol=1e-7, atol=1e-10)


def test_sybils_lose_their_weight_and_a_lone_attacker_does_not():
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(500, generator=generator)
    rule = aggregators.create("foolsgold")
    for t in (1, 2, 3):
        rows = torch.randn(10, 500, generator=generator)
        rows[:3] = target + 0.05 * torch.randn(3, 500, generator=generator)
        out = rule.aggregate(Updates(rows), t)
    assert out.weights[:3].max() < 1e-3
    rows[:3] = torch.randn(3, 500, generator=generator)
    rows[0] = -50 * rows[4]
    assert aggregators.create("foolsgold").aggregate(Updates(rows)).weights[0] > 0.05


def test_all_alike_count_the_same():
    out = aggregators.create("foolsgold").aggregate(Updates(torch.ones(4, 3)))
    assert out.weights.tolist() == [0.25] * 4
    value, _ = foolsgold_values(torch.ones(4, 4, dtype=torch.float64))
    assert not value.any()


@pytest.mark.parametrize("factor", [1e25, 1e-25])
def test_rows_whose_squares_are_lost_are_judged_by_their_directions(factor):
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) + 0.3
    rows[4:] = rows[3] + 0.01 * rows[4:]
    expected = aggregators.create("foolsgold").aggregate(Updates(rows)).weights
    weights = aggregators.create("foolsgold").aggregate(Updates(rows * factor)).weights
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
    assert expected.max() > 2 * expected.min()


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_histories_of_any_length_have_the_same_directions(scale):
    """Products of such rows would lose their digits or overflow."""
    rows = np.random.default_rng(3).normal(size=(6, 15)) + 0.3
    expected = by_loops(rows)
    out = aggregators.create("foolsgold").aggregate(Updates(rows * scale))
    np.testing.assert_allclose(out.weights.numpy(), expected / expected.sum(), rtol=1e-7, atol=1e-10)
