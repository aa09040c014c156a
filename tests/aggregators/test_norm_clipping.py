"""Norm clipping: a bound on every row, and noise that is small and named."""

import pytest
import torch

from wardround import Updates, aggregators


def test_no_row_counts_for_more_than_the_bound(make_updates):
    updates = make_updates(9, 30, dtype=torch.float64, num_samples=None)
    updates.matrix[4] *= 1000
    out = aggregators.create("norm-clipping", norm=2.0, noise=0).aggregate(updates)
    norms = updates.matrix.norm(dim=1, keepdim=True)
    torch.testing.assert_close(out.delta, (updates.matrix * (2 / norms).clamp(max=1)).mean(0))
    assert out.columns["clip_scale"][4].item() == pytest.approx(2 / norms[4].item())


def test_the_bound_is_the_median_norm_where_none_is_given(make_updates):
    updates = make_updates(9, 30)
    median = updates.norms.median()
    given = aggregators.create("norm-clipping", norm=float(median), noise=0).aggregate(updates)
    torch.testing.assert_close(
        aggregators.create("norm-clipping", noise=0).aggregate(updates).delta, given.delta
    )


def test_the_noise_is_gaussian_named_by_seed_and_round():
    sent = Updates(torch.ones(3, 50_000))

    def delta(round=1, **params):
        return aggregators.create("norm-clipping", norm=4.0, **params).aggregate(sent, round).delta

    noise = delta(noise=0.5) - delta(noise=0)
    assert noise.std().item() == pytest.approx(2.0, rel=0.02)  # a share of the bound
    assert abs(noise.mean().item()) < 0.05
    assert torch.equal(delta(noise=0.5), delta(noise=0.5))
    assert not torch.equal(delta(noise=0.5), delta(2, noise=0.5))
    assert not torch.equal(delta(noise=0.5), delta(noise=0.5, seed=1))
