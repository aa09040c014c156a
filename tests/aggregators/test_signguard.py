"""SignGuard: both filters, the clipping, and its features."""

import torch

from wardround import Updates, aggregators


def honest(n=12, d=2000, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.4


def test_flipped_signs_are_found():
    rows = honest()
    rows[:3] *= -1
    out = aggregators.create("signguard").aggregate(Updates(rows))
    assert out.flags[:3].all()
    assert (~out.flags[3:]).sum() >= 7


def test_unusual_norms_are_found_whatever_their_signs():
    rows = honest()
    rows[0] *= 4
    rows[1] *= 0.05
    out = aggregators.create("signguard").aggregate(Updates(rows))
    assert out.flags[:2].all()


def test_the_rest_is_clipped_to_the_median_and_averaged():
    rows = honest().double()
    updates = Updates(rows)
    out = aggregators.create("signguard").aggregate(updates)
    scale = (updates.norms.quantile(0.5) / updates.norms).clamp(max=1)
    kept = ~out.flags
    torch.testing.assert_close(out.delta, (rows * scale[:, None])[kept].mean(0))


def test_features_are_shares_over_their_greatest():
    rule = aggregators.create("signguard", share=1.0)
    rows = torch.tensor([[1.0, 1.0, 0.0, -1.0], [1.0, -1.0, -1.0, -1.0]])
    features = rule._signs(Updates(rows), round=1)
    torch.testing.assert_close(
        features, torch.tensor([[1.0, 1.0, 1 / 3], [0.5, 0.0, 1.0]]).double(), rtol=1e-6, atol=1e-6
    )


def test_coordinates_are_drawn_anew_every_round():
    rule, updates = aggregators.create("signguard"), Updates(honest())
    assert torch.equal(rule._signs(updates, 1), rule._signs(updates, 1))
    assert not torch.equal(rule._signs(updates, 1), rule._signs(updates, 2))
