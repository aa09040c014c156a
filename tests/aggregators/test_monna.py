"""MoNNA: nearest neighbours of a trusted client."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators


@pytest.mark.parametrize(("n", "f", "trusted"), [(5, 1, 0), (9, 4, 8), (20, 4, 3)])
def test_against_the_definition(n, f, trusted):
    rows = np.random.default_rng([n, f]).normal(size=(n, 12))
    names = [f"client-{i:02}" for i in range(n)]
    nearest = np.argsort(np.linalg.norm(rows - rows[trusted], axis=1))[: n - f]
    out = aggregators.create("monna", f=f, trusted=names[trusted]).aggregate(Updates(rows, clients=names))
    np.testing.assert_allclose(out.delta.numpy(), rows[nearest].mean(0), rtol=1e-9)
    assert out.scores[trusted] == pytest.approx(0, abs=1e-6)


def test_without_a_name_the_first_by_name_is_trusted():
    rows = torch.tensor([[9.0], [0.0], [8.0]])
    out = aggregators.create("monna", f=1).aggregate(Updates(rows, clients=["b", "c", "a"]))
    assert out.delta.item() == 8.5


def test_a_round_without_the_trusted_client_is_skipped():
    rows = torch.tensor([[1.0], [2.0], [torch.nan], [3.0]])
    rule = aggregators.create("monna", f=1, trusted="c")
    for names in (["a", "b", "c", "d"], ["a", "b", "x", "d"]):  # malformed, and absent
        out = rule.aggregate(Updates(rows, clients=names))
        assert out.skipped == "no update of c, the trusted client"
        assert out.delta.item() == 0
