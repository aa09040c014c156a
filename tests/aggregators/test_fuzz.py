"""Whatever clients send, a rule gives a finite result or skips the round with a reason."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import TooFewClients

RULES = [name for name in aggregators.available() if not aggregators.registry.get(name).needs_practice_ground]
EXTREMES = (0.0, 1e-45, 1e-40, 1e-30, 1e-3, 1.0, 1e10, 1e30, 3e38)


def random_round(rng, n, d):
    """Rows of very different magnitude, with zeros, duplicates, denormals, and some that are malformed."""
    rows = rng.normal(size=(n, d)) * rng.choice(EXTREMES, size=(n, 1))
    if n > 1 and rng.random() < 0.3:
        rows[rng.integers(n)] = rows[rng.integers(n)]
    if rng.random() < 0.2:
        rows[rng.integers(n)] = 0
    if rng.random() < 0.2:
        rows[rng.integers(n), rng.integers(d)] = rng.choice([np.nan, np.inf, -np.inf])
    with np.errstate(over="ignore"):
        rows = rows.astype(rng.choice(["float32", "float64"]))
    counts = rng.choice(
        [0.0, 1.0, 10.0, 1e6, 2.0**53, 1e308, np.nan, -1.0], size=n, p=[0.1, 0.3, 0.3, 0.1] + [0.05] * 4
    )
    loss = rng.choice([0.0, 1e-300, 0.5, 1e300, np.nan, np.inf, -1.0], size=n)
    form = rng.integers(4)
    if form == 0:
        matrix = rows
    elif form == 1:
        matrix = torch.from_numpy(rows)
    elif form == 2:
        matrix = torch.from_numpy(np.repeat(rows, 2, axis=1))[:, ::2]  # strided
    else:
        matrix = [torch.from_numpy(row) for row in rows]
        if n > 2 and rng.random() < 0.3:
            matrix[0] = matrix[0][:-1] if d > 1 else torch.ones(2)
    return Updates(matrix, num_samples=counts, metrics={"loss": loss})


def assert_sound(result, n, d, what):
    assert result.delta.shape == (d,), what
    assert bool(torch.isfinite(result.delta).all()), what
    if result.weights is not None:
        weights = result.weights
        assert len(weights) == n, what
        assert bool(torch.isfinite(weights).all()), what
        assert bool((weights >= 0).all()), what
        total = float(weights.sum())
        assert total == pytest.approx(1, abs=1e-6) or total == 0, (what, total)
    if result.skipped is not None:
        assert not bool(result.delta.any()), what


def fuzz(name, cases):
    for case in range(cases):
        rng = np.random.default_rng([case, len(name)])
        n, d = int(rng.integers(1, 14)), int(rng.integers(1, 30))
        rule = aggregators.create(name)
        weights = torch.from_numpy(rng.normal(size=d).astype("float32"))
        for round in (1, 2):
            updates = random_round(rng, n, d)
            root = torch.from_numpy((rng.normal(size=d) * rng.choice(EXTREMES[:7])).astype("float32"))
            try:
                result = rule.aggregate(updates, round, global_weights=weights, root_update=root)
            except TooFewClients:
                break
            assert_sound(result, n, d, f"{name}, case {case}, round {round}")


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_thousand_extreme_rounds(name):
    fuzz(name, 500)  # of two rounds each


@pytest.mark.parametrize("name", RULES)
def test_all_rows_refused_is_a_skipped_round(name):
    n, d = 12, 4
    rule = aggregators.create(name)
    vector = torch.ones(d)
    result = rule.aggregate(
        Updates(torch.full((n, d), torch.nan), metrics={"loss": torch.ones(n)}),
        global_weights=vector,
        root_update=vector,
    )
    assert result.skipped is not None
    assert not result.delta.any()
    assert len(result.dropped) == n
