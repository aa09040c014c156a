"""CAF against its pseudocode with dense eigenvectors of the covariance."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators


def by_covariance(rows, f):
    n = len(rows)
    c, least, best = np.ones(n), np.inf, None
    while c.sum() > n - 2 * f:
        mu = c @ rows / c.sum()
        x = rows - mu
        values, vectors = np.linalg.eigh((c[:, None] * x).T @ x / c.sum())
        if values[-1] < least:
            least, best = values[-1], mu
        tau = (x @ vectors[:, -1]) ** 2
        c = c * (1 - tau / tau[c > 0].max()).clip(min=0)
    return best


@pytest.mark.parametrize(("n", "f"), [(5, 1), (9, 3), (20, 4), (20, 9)])
def test_against_the_pseudocode(n, f):
    rng = np.random.default_rng([n, f])
    rows = rng.normal(size=(n, 12))
    rows[:f] += 5
    delta = aggregators.create("caf", f=f).aggregate(Updates(rows)).delta
    np.testing.assert_allclose(delta.numpy(), by_covariance(rows, f), rtol=1e-7, atol=1e-9)


def test_without_byzantine_clients_it_is_the_mean(make_updates):
    updates = make_updates(6, 10, dtype=torch.float64)
    delta = aggregators.create("caf", f=0).aggregate(updates).delta
    torch.testing.assert_close(delta, updates.matrix.mean(0))


def test_far_rows_lose_their_weight():
    rows = torch.randn(12, 300, generator=torch.Generator().manual_seed(2))
    rows[:3] += 50
    out = aggregators.create("caf", f=3).aggregate(Updates(rows))
    assert out.weights[:3].max() < 1e-6
    assert out.scores[:3].min() > out.scores[3:].max()
