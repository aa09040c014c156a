import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ParameterError, TooFewClients


def test_by_hand():
    rows = torch.tensor([[0.0], [1], [2], [3], [4.5], [90]])
    out = aggregators.create("multi-krum", f=1, m=2).aggregate(Updates(rows))
    assert out.weights.tolist() == [0, 0.5, 0.5, 0, 0, 0]
    assert out.delta.item() == 1.5
    assert aggregators.create("multi-krum", f=1).aggregate(Updates(rows)).delta.item() == pytest.approx(2.1)


def test_m_is_on_record_and_checked():
    assert aggregators.create("multi-krum").resolved(20) == {"f": 4, "m": 16}
    assert aggregators.create("multi-krum", m=3).resolved(20) == {"f": 4, "m": 3}
    with pytest.raises(TooFewClients, match="N ≥ m = 30, got N=20"):
        aggregators.create("multi-krum", m=30).check(20)
    with pytest.raises(ParameterError, match="m: must be greater than or equal to 1, got 0"):
        aggregators.create("multi-krum", m=0)


def test_without_attackers_and_f_zero_it_is_the_mean(make_updates):
    updates = make_updates(9, 30)
    out = aggregators.create("multi-krum", f=0).aggregate(updates)
    torch.testing.assert_close(out.delta, updates.matrix.mean(0))


def test_m_one_is_krum(make_updates):
    updates = make_updates(13, 30)
    one = aggregators.create("multi-krum", m=1).aggregate(updates)
    assert torch.equal(one.delta, aggregators.create("krum").aggregate(updates).delta)
