"""DnC against a singular value decomposition, and its draws."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators


@pytest.mark.parametrize(("n", "f", "c"), [(7, 2, 1.0), (20, 4, 1.0), (20, 4, 1.5), (20, 0, 1.0)])
def test_one_draw_of_everything_is_a_singular_vector(n, f, c):
    rng = np.random.default_rng([n, f])
    rows = rng.normal(size=(n, 60))
    centred = rows - rows.mean(0)
    v = np.linalg.svd(centred, full_matrices=False)[2][0]
    kept = np.argsort((centred @ v) ** 2)[: n - int(c * f)]
    out = aggregators.create("dnc", f=f, c=c).aggregate(Updates(rows))
    np.testing.assert_allclose(out.delta.numpy(), rows[np.sort(kept)].mean(0), rtol=1e-9, atol=1e-12)
    assert set((~out.flags).nonzero().flatten().tolist()) == set(kept.tolist())


def test_who_stays_has_stayed_in_every_iteration(make_updates):
    updates = make_updates(20, 4000)
    single = [
        aggregators.create("dnc", f=4, coordinates=50, seed=0).aggregate(updates, round=1),
        aggregators.create("dnc", f=4, coordinates=50, iterations=3, seed=0).aggregate(updates, round=1),
    ]
    assert (single[1].flags | ~single[0].flags).all(), "the first draw is one of the three"
    assert single[1].flags.sum() > single[0].flags.sum()


def test_where_nobody_stays_the_most_frequent_do():
    rows = torch.eye(3, 3) * 9
    out = aggregators.create("dnc", f=1, iterations=20, coordinates=1).aggregate(Updates(rows))
    assert out.skipped is None
    assert (~out.flags).any()


def test_draws_change_with_the_round_and_the_seed(make_updates):
    updates = make_updates(20, 4000)

    def scores(round, seed=0):
        return aggregators.create("dnc", coordinates=20, seed=seed).aggregate(updates, round).scores

    assert torch.equal(scores(1), scores(1))
    assert not torch.equal(scores(1), scores(2))
    assert not torch.equal(scores(1), scores(1, seed=1))
