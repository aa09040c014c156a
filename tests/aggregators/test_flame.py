"""FLAME: who is clustered out, how rows are clipped, what the noise is."""

import pytest
import torch

from wardround import Updates, aggregators

W = torch.linspace(-1, 1, 400)


def rows_with(attackers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.ones(400) + 0.3 * torch.randn(12, 400, generator=generator)
    rows[:attackers] = torch.randn(1, 400, generator=generator) + 0.1 * torch.randn(
        attackers, 400, generator=generator
    )
    return rows


@pytest.mark.parametrize("of", ["models", "updates"])
@pytest.mark.parametrize("attackers", [1, 3, 5])
def test_the_minority_goes(of, attackers):
    out = aggregators.create("flame", of=of).aggregate(Updates(rows_with(attackers)), global_weights=W)
    assert out.flags[:attackers].all()
    assert (~out.flags).sum() >= 7
    assert out.weights[:attackers].sum() == 0


def test_rows_are_clipped_to_the_median_of_all_norms():
    rows = rows_with(1)
    rows[5] *= 10
    updates = Updates(rows)
    out = aggregators.create("flame", of="updates", noise=0).aggregate(updates, global_weights=W)
    bound = updates.norms.quantile(0.5)
    kept = ~out.flags
    assert kept[5]
    clipped = rows * (bound / updates.norms).clamp(max=1)[:, None].float()
    torch.testing.assert_close(out.delta, clipped[kept].mean(0), rtol=1e-4, atol=1e-5)


def test_the_noise_is_a_share_of_the_median_norm():
    rows = torch.ones(5, 40_000)
    quiet, noisy = (
        aggregators.create("flame", noise=noise).aggregate(Updates(rows), global_weights=rows[0]).delta
        for noise in (0, 0.01)
    )
    assert (noisy - quiet).std().item() == pytest.approx(0.01 * 200, rel=0.03)


def test_distances_of_models_keep_their_digits():
    """Updates a million times shorter than the weights: models are nearly parallel, the cluster is still found."""
    out = aggregators.create("flame", noise=0).aggregate(Updates(1e-6 * rows_with(4)), global_weights=W * 10)
    assert out.flags[:4].all()
