"""The oracle: FedAvg that is told who attacks."""

import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ConfigError, ParameterError
from wardround.runs.config import load_config
from wardround.runs.runner import build


def sent(rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, 30, generator=generator)
    return Updates(matrix, num_samples=torch.randint(1, 90, (rows,), generator=generator).tolist())


@pytest.mark.parametrize("seed", range(5))
def test_without_attackers_it_is_fedavg_to_the_last_bit(seed):
    oracle = aggregators.create("oracle").aggregate(sent(seed=seed), attackers=())
    fedavg = aggregators.create("fedavg").aggregate(sent(seed=seed))
    assert torch.equal(oracle.delta, fedavg.delta)
    assert torch.equal(oracle.weights, fedavg.weights)
    assert not oracle.flags.any()


@pytest.mark.parametrize("seed", range(5))
def test_attackers_have_no_part_whatever_they_send(seed):
    updates = sent(seed=seed)
    attackers = {updates.clients[1], updates.clients[4]}
    honest = [0, 2, 3, 5]
    expected = aggregators.create("fedavg").aggregate(updates.select(honest))
    for lie in (1.0, -1e6, 0.0):
        rows = updates.matrix.clone()
        rows[[1, 4]] *= lie
        changed = Updates(rows, updates.clients, updates.num_samples)
        result = aggregators.create("oracle").aggregate(changed, attackers=attackers)
        torch.testing.assert_close(result.delta, expected.delta)
        assert result.weights[[1, 4]].tolist() == [0, 0]
        assert result.flags.tolist() == [False, True, False, False, True, False]


def test_a_round_of_attackers_alone_is_skipped():
    updates = sent()
    result = aggregators.create("oracle").aggregate(updates, attackers=updates.clients)
    assert result.skipped == "every client attacks or is broken"
    assert not result.delta.any()


def test_a_stranger_must_say_who_attacks():
    with pytest.raises(ParameterError, match="oracle needs attackers"):
        aggregators.create("oracle").aggregate(sent())


def test_it_is_known_but_nothing_to_choose():
    assert "oracle" not in aggregators.available()
    assert "oracle" in aggregators.registry


def test_a_flower_strategy_cannot_be_told():
    pytest.importorskip("flwr", reason="the strategy needs wardround[flower]")
    from wardround.flower.rule_strategy import RuleStrategy

    with pytest.raises(ConfigError, match="only a simulation knows"):
        RuleStrategy("oracle")


def test_in_a_simulation_it_hears_of_the_window(tiny):
    """Attackers count while they behave: before the window, and after it."""
    attack = {"name": "sign-flip", "fraction": 0.34, "start": 2, "end": 3}
    federation = build(load_config({**tiny, "aggregator": {"name": "oracle"}, "attack": attack, "rounds": 3}))
    flags = {
        number: {one.client for one in federation.step(number).clients if one.flag} for number in (1, 2, 3)
    }
    assert flags == {1: set(), 2: set(federation.campaign.byzantine), 3: set()}
    assert len(flags[2]) == 2
