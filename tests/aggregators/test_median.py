import torch

from wardround import Updates, aggregators


def test_by_hand():
    rows = torch.tensor([[1.0, -1], [2, 8], [10, 3], [4, 5]])
    assert aggregators.create("median").aggregate(Updates(rows)).delta.tolist() == [3, 4]


def test_one_nan_client_does_not_turn_the_median_into_nan():
    rows = torch.tensor([[1.0, 1], [2, 2], [torch.nan, 3], [4, 4]])
    out = aggregators.create("median").aggregate(Updates(rows))
    assert out.delta.tolist() == [2, 2]
    assert out.dropped == {"client-02": "not finite"}
    assert out.weights is None


def test_the_proven_coefficient_by_hand():
    rule = aggregators.create("median")
    assert rule.assumed_byzantine(20) == 4
    assert rule.proven_kappa(20) == 4 * (1 + 4 / 12) ** 2
