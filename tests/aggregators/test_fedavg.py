import pytest
import torch

from wardround import Updates, aggregators


def test_by_hand():
    out = aggregators.create("fedavg").aggregate(Updates(torch.tensor([[1.0], [5.0]]), num_samples=[3, 1]))
    assert out.delta.item() == 2
    assert out.weights.tolist() == [0.75, 0.25]


def test_the_cap_bounds_what_a_lied_sample_count_buys():
    sent = Updates(torch.tensor([[1.0], [1.0], [1.0], [-9.0]]), num_samples=[100, 120, 80, 10**12])
    assert aggregators.create("fedavg").aggregate(sent).delta.item() == pytest.approx(-9)
    capped = aggregators.create("fedavg", sample_cap=1).aggregate(sent)  # median 110
    assert capped.weights[3].item() == pytest.approx(110 / (100 + 110 + 80 + 110))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedbn", "rfa", "caac"])
def test_every_rule_that_weighs_by_samples_has_the_cap(name, make_updates):
    updates = make_updates(10, 40, num_samples=torch.tensor([10.0**9] + [50.0] * 9))
    out = aggregators.create(name, sample_cap=2).aggregate(updates)
    assert out.weights[0] < 0.25


def test_nobody_has_a_sample():
    out = aggregators.create("fedavg").aggregate(Updates(torch.tensor([[1.0], [3.0]]), num_samples=[0, 0]))
    assert out.delta.item() == 2


@pytest.mark.parametrize("count", [-1.0, torch.nan, torch.inf])
def test_an_impossible_sample_count_costs_the_client_its_update(count):
    sent = Updates(torch.tensor([[1.0], [3.0], [9.0]]), num_samples=[1, 1, count])
    out = aggregators.create("fedavg").aggregate(sent)
    assert out.delta.item() == 2
    assert list(out.dropped) == ["client-02"]
