"""RLR: the sign of a coordinate's step depends on how many clients agree on it."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators


@pytest.mark.parametrize("threshold", [0.1, 0.4, 0.75, 1.0])
def test_against_the_definition(threshold):
    rng = np.random.default_rng(1)
    rows, counts = rng.normal(size=(10, 200)), rng.integers(1, 50, size=10)
    mean = counts @ rows / counts.sum()
    theta = np.ceil(threshold * 10 - 1e-9)
    rate = np.where(np.abs(np.sign(rows).sum(0)) >= theta, 1, -1)
    delta = aggregators.create("rlr", threshold=threshold).aggregate(Updates(rows, num_samples=counts)).delta
    np.testing.assert_allclose(delta.numpy(), rate * mean, rtol=1e-10)
    assert (rate == -1).any()


def test_theta_follows_the_clients_that_are_there():
    rule = aggregators.create("rlr")
    assert rule.resolved(10)["theta"] == 4
    assert rule.resolved(33)["theta"] == 14


def test_a_large_model_is_done_in_parts():
    rows = torch.randn(5, 70_000, generator=torch.Generator().manual_seed(0))
    delta = aggregators.create("rlr", threshold=0.6).aggregate(Updates(rows)).delta
    rate = torch.where(rows.sign().sum(0).abs() >= 3, 1.0, -1.0)
    torch.testing.assert_close(delta, rate * rows.mean(0), rtol=1e-4, atol=1e-6)
