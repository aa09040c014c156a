"""SMEA against its definition, with eigenvalues of every subset's own covariance."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround import Updates, aggregators
from wardround.aggregators._math.subsets import subsets_without
from wardround.aggregators.smea import least_spread
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


def first_of_all(gram, subsets):
    """The search without any short cut: every eigenvalue of every subset."""
    own = gram[subsets[:, :, None], subsets[:, None, :]]
    lines = own.mean(2, keepdim=True)
    tops = torch.linalg.eigvalsh(own - lines - lines.mT + lines.mean(1, keepdim=True))[:, -1]
    return int(tops.argmin())


ROWS = {
    "of many directions": lambda rows: rows,
    "in a plane": lambda rows: rows[:, :2],
    "on a line": lambda rows: rows[:, :1],
    "all alike": lambda rows: rows[:1].expand(len(rows), -1),
    "nothing": lambda rows: 0 * rows,
    "in pairs": lambda rows: rows[torch.arange(len(rows)) // 2],
    "whole numbers": lambda rows: rows.round(),
    "some far away": lambda rows: rows + 1e6 * (torch.arange(len(rows)) < len(rows) // 3)[:, None],
    "some huge": lambda rows: (
        rows * torch.where(torch.arange(len(rows)) < len(rows) // 3, 1e12, 1.0)[:, None]
    ),
    "all far away": lambda rows: rows + 1e5,
    "tiny": lambda rows: 1e-120 * rows,
}


@pytest.mark.parametrize("kind", ROWS)
@settings(max_examples=15)
@given(n=st.integers(1, 12), f=st.integers(0, 5), d=st.integers(1, 60), seed=st.integers(0, 999))
def test_the_search_finds_what_looking_at_every_subset_finds(kind, n, f, d, seed):
    """The same place, of several equal ones the same."""
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    subsets = subsets_without(n, min(f, (n - 1) // 2))
    rows = ROWS[kind](rows)
    gram = rows @ rows.T
    assert least_spread(gram, subsets) == first_of_all(gram, subsets)


def test_the_search_continues_from_one_part_of_the_subsets_to_the_next(monkeypatch):
    monkeypatch.setattr("wardround.aggregators.smea.SUBSETS_AT_ONCE", 50)
    monkeypatch.setattr("wardround.aggregators.smea.EIGENVALUES_AT_ONCE", 3)
    for seed in range(20):
        rows = torch.randn(11, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        rows[seed % 11] *= 9
        gram, subsets = rows @ rows.T, subsets_without(11, 4)
        assert least_spread(gram, subsets) == first_of_all(gram, subsets)


def test_most_eigenvalues_are_never_computed(monkeypatch):
    computed, exact = [], torch.linalg.eigvalsh
    monkeypatch.setattr(
        torch.linalg, "eigvalsh", lambda values: computed.append(len(values)) or exact(values)
    )
    rows = torch.randn(20, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert least_spread(rows @ rows.T, subsets_without(20, 4)) >= 0
    assert sum(computed) < 4845 / 10
