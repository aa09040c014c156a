"""MDA against its definition, every subset in turn."""

from itertools import combinations

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ParameterError


def diameter(rows, places):
    return max(np.linalg.norm(rows[i] - rows[j]) for i, j in combinations(places, 2))


@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 3), (9, 2), (10, 4)])
def test_no_subset_lies_closer_together(n, f):
    rows = np.random.default_rng([n, f]).normal(size=(n, 6))
    out = aggregators.create("mda", f=f).aggregate(Updates(rows))
    chosen = out.weights.nonzero().flatten().tolist()
    least = min(diameter(rows, places) for places in combinations(range(n), n - f))
    assert len(chosen) == n - f
    assert diameter(rows, chosen) == pytest.approx(least, rel=1e-9)
    np.testing.assert_allclose(out.delta.numpy(), rows[chosen].mean(0), rtol=1e-9)


def test_of_equal_diameters_the_tightest_is_taken():
    # Without c or without d the diameter is that of a and b, 10; c is farther from both than d.
    rows = torch.tensor([[0.0, 0.0], [10.0, 0.0], [5.0, 8.0], [5.0, -7.0]])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        names = ["abcd"[i] for i in order]
        out = aggregators.create("mda", f=1).aggregate(Updates(rows[order], clients=names))
        assert out.weights[names.index("c")] == 0
        torch.testing.assert_close(out.delta, rows[[0, 1, 3]].mean(0))


def test_far_rows_are_left_out(make_updates):
    updates = make_updates(12, 30)
    updates.matrix[:3] += 50
    out = aggregators.create("mda", f=3).aggregate(updates)
    assert out.weights[:3].tolist() == [0, 0, 0]
    assert out.scores[:3].min() > out.scores[3:].max()


@pytest.mark.parametrize("name", ["mda", "smea"])
def test_too_many_subsets_are_refused_at_once(name, make_updates):
    message = rf"{name}: looks at every way to leave out f=8 of N=40 clients, 76,904,685 of them; at most 200,000 work"
    with pytest.raises(ParameterError, match=message):
        aggregators.create(name, f=8).aggregate(make_updates(40, 3))
