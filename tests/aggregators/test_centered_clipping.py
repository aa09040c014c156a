import numpy as np
import pytest
import torch

from wardround import Updates, aggregators


def by_definition(rows, v, tau, iterations):
    rows = rows.double().numpy()
    for _ in range(iterations):
        away = rows - v
        lengths = np.linalg.norm(away, axis=1, keepdims=True)
        v = v + (away * np.minimum(1, tau / np.maximum(lengths, 1e-300))).mean(axis=0)
    return v


@pytest.mark.parametrize("tau", [0.5, 5.0, 1e3])
def test_against_the_definition_over_rounds(tau, make_updates, both_paths):
    rule = aggregators.create("centered-clipping", tau=tau)
    v = np.zeros(40)
    for t in range(1, 5):
        updates = make_updates(12, 40, seed=t)
        updates.matrix[0] *= -1e4
        v = by_definition(updates.matrix, v, tau, 3)
        out = rule.aggregate(updates, t)
        np.testing.assert_allclose(out.delta, v, rtol=1e-4, atol=1e-5)
        v = out.delta.double().numpy()


def test_one_step_by_hand():
    """From 0 with τ = 1: 0.5 stays, 900 counts as 1, −3 as −1."""
    rule = aggregators.create("centered-clipping", tau=1.0, iterations=1)
    assert rule.aggregate(Updates(torch.tensor([[0.5], [900.0], [-3.0]]))).delta.item() == pytest.approx(
        0.5 / 3
    )


def test_tau_can_be_a_quantile_of_the_norms():
    rule = aggregators.create("centered-clipping", tau_quantile=0.5, iterations=1)
    out = rule.aggregate(Updates(torch.tensor([[1.0], [2.0], [90.0]])))
    assert out.columns["tau"].tolist() == [2, 2, 2]
    assert out.delta.item() == pytest.approx(5 / 3)
