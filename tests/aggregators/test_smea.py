"""SMEA against its definition, with eigenvalues of every subset's own covariance."""

from itertools import combinations

import numpy as np
import pytest

from wardround import Updates, aggregators
from wardround.federation.robustness import empirical_kappa


def by_covariance(rows, f):
    subsets = [list(places) for places in combinations(range(len(rows)), len(rows) - f)]
    tops = [np.linalg.eigvalsh(np.cov(rows[places].T, bias=True))[-1] for places in subsets]
    return rows[subsets[int(np.argmin(tops))]].mean(0)


@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 3), (9, 2), (10, 4)])
def test_against_the_definition(n, f):
    rows = np.random.default_rng([n, f]).normal(size=(n, 6))
    delta = aggregators.create("smea", f=f).aggregate(Updates(rows)).delta
    np.testing.assert_allclose(delta.numpy(), by_covariance(rows, f), rtol=1e-9, atol=1e-12)


def test_far_rows_are_left_out(make_updates):
    updates = make_updates(12, 30)
    updates.matrix[:3] += 50
    out = aggregators.create("smea", f=3).aggregate(updates)
    assert out.weights[:3].tolist() == [0, 0, 0]
    assert out.scores[:3].min() > out.scores[3:].max()


@pytest.mark.parametrize("away", [0.5, 1.5, 4.0, 100.0])
def test_it_is_as_robust_as_proven(away):
    for seed in range(5):
        rows = np.random.default_rng(seed).normal(size=(9, 4))
        rows[:3] = rows[3:].mean(0) + away * rows[3:].std(0)
        updates = Updates(rows)
        rule = aggregators.create("smea", f=3)
        kappa = empirical_kappa(updates, rule.aggregate(updates), set(updates.clients[:3]))
        assert rule.proven_kappa(9) == pytest.approx(4 * 3 / 6 * 4)
        assert kappa <= rule.proven_kappa(9)


@pytest.mark.parametrize("clients", [5, 6])
def test_nothing_is_proven_for_half_of_the_clients_or_more(clients):
    assert aggregators.create("smea", f=3).proven_kappa(clients) is None
    assert aggregators.create("smea", f=3).proven_kappa(7) == 4 * 3 / 4 * (1 + 3) ** 2
