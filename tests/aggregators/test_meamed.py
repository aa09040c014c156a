"""MeaMed against its definition in numpy."""

import numpy as np
import torch

from wardround import Updates, aggregators


def test_against_the_definition(both_paths):
    rng = np.random.default_rng(0)
    for n, f in ((5, 1), (9, 4), (20, 4), (21, 0)):
        rows = rng.normal(size=(n, 30))
        expected = []
        for column in rows.T:
            nearest = np.argsort(np.abs(column - np.median(column)))[: n - f]
            expected.append(column[nearest].mean())
        delta = aggregators.create("meamed", f=f).aggregate(Updates(rows)).delta
        np.testing.assert_allclose(delta.numpy(), expected, rtol=1e-12)


def test_f_zero_is_the_mean(make_updates):
    updates = make_updates(7, 11, dtype=torch.float64)
    delta = aggregators.create("meamed", f=0).aggregate(updates).delta
    torch.testing.assert_close(delta, updates.matrix.mean(0))
