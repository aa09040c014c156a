import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from wardround.training import sample_order as order
from wardround.training.sample_order import shuffled, shuffled_all

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.integers(0, 50), st.integers(0, 300))
def test_it_is_a_permutation(seed, epoch, n):
    assert sorted(shuffled(seed, epoch, n).tolist()) == list(range(n))


@given(st.lists(st.tuples(seeds, st.integers(1, 40)), min_size=1, max_size=20), st.integers(0, 5))
def test_many_clients_at_once_are_shuffled_as_each_alone(clients, epoch):
    sizes = np.array([size for _, size in clients])
    together = shuffled_all([seed for seed, _ in clients], sizes, epoch)
    starts = np.cumsum(sizes) - sizes
    alone = [shuffled(seed, epoch, size) + start for (seed, size), start in zip(clients, starts, strict=True)]
    assert together.tolist() == np.concatenate(alone).tolist()


def test_equal_keys_keep_the_order_of_the_samples(monkeypatch):
    monkeypatch.setattr(order, "_mix", lambda words: words & np.uint64(1 << 63))
    sizes = np.array([30, 20])
    together = shuffled_all([5, 6], sizes, 0)
    assert together.tolist() == [*shuffled(5, 0, 30).tolist(), *(30 + shuffled(6, 0, 20)).tolist()]


def test_every_sample_is_equally_likely_at_every_place():
    n, draws = 7, 4000
    counts = np.zeros((n, n))
    for seed in range(draws):
        counts[np.arange(n), shuffled(seed, seed % 3, n)] += 1
    # (n−1)² free cells of a doubly constrained table
    statistic = ((counts - draws / n) ** 2 / (draws / n)).sum()
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > 1e-3


def test_too_many_clients_are_refused():
    with pytest.raises(ValueError, match="at most 16777215 clients"):
        shuffled_all(range(1 << 24), np.ones(1, dtype=int), 0)
