import pytest
import torch

from wardround import aggregators
from wardround.errors import ParameterError


def test_it_is_fedavg_with_a_wish_to_the_clients(make_updates):
    updates = make_updates(6, 30)
    rule = aggregators.create("fedprox")
    assert torch.equal(rule.aggregate(updates).delta, aggregators.create("fedavg").aggregate(updates).delta)
    assert rule.client_policy == aggregators.ClientPolicy(prox_mu=0.01)
    assert aggregators.create("fedavg").client_policy.prox_mu is None


def test_mu_must_not_be_negative():
    with pytest.raises(ParameterError, match="mu"):
        aggregators.create("fedprox", mu=-1)
