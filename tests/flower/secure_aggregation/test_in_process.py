"""Secure aggregation in simulations: what plaintext gives, up to rounding."""

import pytest
import torch
from fast_cases import slow_but

from wardround import aggregators
from wardround.errors import ConfigError
from wardround.flower.secure_aggregation.in_process import sum_in_process
from wardround.privacy.params import PrivacyParams, rules_for
from wardround.privacy.protection import Protection
from wardround.runs.config import load_config
from wardround.runs.runner import run
from wardround.updates import Updates

RULES = [aggregators.registry.get(name) for name in aggregators.available()]
NAMES = rules_for("secure-aggregation", RULES)
SMALL = {
    "dataset": {"name": "synthetic", "samples": 400, "features": 6},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.01},
    "rounds": 3,
}


def sent(seed=0, clients=6, dimension=50):
    random = torch.Generator().manual_seed(seed)
    matrix = torch.randn(clients, dimension, generator=random) * 1e-2
    return Updates(
        matrix, num_samples=range(10, 10 + clients), metrics={"loss": torch.linspace(0.3, 0.9, clients)}
    )


def relative(one, other):
    return float((one - other).norm() / other.norm())


def test_the_rules_that_need_a_weighted_sum_work():
    assert NAMES == ["fedavg", "fedmed", "fedprox", "mean"]


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_gives_what_it_gives_in_the_clear(name):
    updates = sent()
    expected = aggregators.create(name).aggregate(updates, 1)
    protection = Protection(PrivacyParams(mode="secure-aggregation"), aggregators.create(name), (), 50, 0)
    weights = dict(zip(updates.clients, protection.weigh_reports(1, updates).weights.tolist(), strict=True))
    summed = sum_in_process(updates, weights, "order", 3, 0.5)
    result = protection.settle(updates, summed, 1, 50, torch.float32)
    assert relative(result.delta, expected.delta) < 1e-6
    assert result.weights.tolist() == pytest.approx(expected.weights.tolist(), abs=1e-12)
    assert result.columns.keys() == expected.columns.keys()
    assert result.delta.dtype == expected.delta.dtype
    assert not result.dropped


@pytest.mark.parametrize("name", slow_but(NAMES[:1], NAMES))
def test_a_run_ends_where_a_run_in_the_clear_ends(name, tmp_path):
    config = {**SMALL, "aggregator": {"name": name}}
    ends = []
    for mode in ("plaintext", "secure-aggregation"):
        folder = run(load_config({**config, "privacy": {"mode": mode}}), tmp_path)
        assert all(record.skipped is None for record in folder.rounds())
        ends.append(folder.read_checkpoint()["federation"]["weights"])
    assert relative(ends[1], ends[0]) < 1e-6


@pytest.mark.slow
def test_a_run_repeats_to_the_last_byte(tmp_path):
    """Masks are random, but they cancel exactly."""
    config = load_config({**SMALL, "privacy": {"mode": "secure-aggregation"}})
    ends = [run(config, tmp_path / str(i)).read_checkpoint()["federation"]["weights"] for i in (0, 1)]
    assert torch.equal(*ends)


def test_some_clients_of_each_round(tmp_path):
    config = {**SMALL, "aggregator": {"name": "mean"}, "participation": 0.5}
    folder = run(load_config({**config, "privacy": {"mode": "secure-aggregation"}}), tmp_path)
    assert all(record.skipped is None for record in folder.rounds())
    assert sum(client.weight for client in folder.clients() if client.round == 1) == pytest.approx(1)


def test_noise_goes_under_the_masks(tmp_path):
    dp = {"unit": "client", "clip": 0.5, "noise_multiplier": 0.2}
    ends = []
    for mode in ("plaintext", "secure-aggregation"):
        folder = run(load_config({**SMALL, "privacy": {"mode": mode, "dp": dp}}), tmp_path)
        ends.append(folder.read_checkpoint()["federation"]["weights"])
        assert folder.rounds()[-1].privacy["epsilon"] > 0
    assert relative(ends[1], ends[0]) < 1e-6


def test_an_attacker_masks_what_it_has_made_up(tmp_path):
    attack = {"name": "sign-flip", "fraction": 0.34}
    ends = [
        run(load_config({**SMALL, "attack": attack, "privacy": {"mode": mode}}), tmp_path).read_checkpoint()[
            "federation"
        ]["weights"]
        for mode in ("plaintext", "secure-aggregation")
    ]
    assert relative(ends[1], ends[0]) < 1e-6


def test_an_update_that_cannot_be_masked_costs_its_row(tmp_path):
    attack = {"name": "scaling", "factor": 1e30, "fraction": 0.34}
    config = {**SMALL, "attack": attack, "privacy": {"mode": "secure-aggregation"}}
    folder = run(load_config(config), tmp_path)
    for record in folder.rounds():
        assert record.skipped is None
        assert len(record.left_out) == 2
        assert all("can be masked" in why.reason for why in record.left_out.values())
    assert all(client.weight == 0 for client in folder.clients() if client.byzantine)


def test_sums_that_would_show_one_client_are_skipped(tmp_path):
    privacy = {"mode": "secure-aggregation", "max_share": 0.1}
    folder = run(load_config({**SMALL, "aggregator": {"name": "mean"}, "privacy": privacy}), tmp_path)
    assert all("one client has 0.167" in record.skipped for record in folder.rounds())
    assert all(client.weight == 0 for client in folder.clients())


def test_too_few_clients_are_an_error_before_the_first_round(tmp_path):
    config = load_config({**SMALL, "participation": 0.3, "privacy": {"mode": "secure-aggregation"}})
    with pytest.raises(
        ConfigError, match="2 clients a round, but clients mask their updates in cohorts of at least"
    ):
        run(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_rules_that_see_more_are_errors():
    for name, mode in (("krum", "plaintext"), ("caac", "encrypted-caac or plaintext")):
        with pytest.raises(ConfigError) as problem:
            load_config({**SMALL, "aggregator": {"name": name}, "privacy": {"mode": "secure-aggregation"}})
        assert "rules that work here: fedavg, fedmed, fedprox, mean" in str(problem.value)
        assert f"works in mode {mode}" in str(problem.value)
    privacy = {"mode": "secure-aggregation", "steward": "http://127.0.0.1:1", "steward_keys": "keys"}
    with pytest.raises(ConfigError, match="mode secure-aggregation has no steward"):
        load_config({**SMALL, "privacy": privacy})
