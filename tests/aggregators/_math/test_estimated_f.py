"""`f: auto`: the number of Byzantine clients, estimated from the round."""

import numpy as np
import pytest
import torch
from fast_cases import slow_but

from wardround import Updates, aggregators
from wardround.aggregators._math.estimated_f import estimate_byzantine
from wardround.errors import ParameterError, TooFewClients
from wardround.runs.config import load_config
from wardround.runs.runner import run

BOUND = sorted(
    name for name in aggregators.available() if issubclass(aggregators.registry.get(name), aggregators.ByzantineBound)
)  # fmt: skip


def rows_of(attackers, n=20, dimension=30, seed=0, shift=8.0):
    """Honest clients around one place; attackers each somewhere else, first in order."""
    rows = torch.randn(n, dimension, generator=torch.Generator().manual_seed(seed)) + 1
    rows[:attackers] *= shift
    return rows


def distances(rows):
    return torch.cdist(rows.double(), rows.double()).square()


def test_there_are_rules_to_test():
    assert {"krum", "multi-krum", "trimmed-mean", "bulyan", "meamed", "dnc", "caf"} <= set(BOUND)


@pytest.mark.parametrize("attackers", [0, 1, 2, 4, 6, 8])
@pytest.mark.parametrize("seed", range(5))
def test_it_counts_attackers_who_stick_out(attackers, seed):
    rows = rows_of(attackers, seed=seed)
    assert estimate_byzantine(distances(rows), 9, round=seed + 1) == attackers
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    assert estimate_byzantine(distances(rows[order] * 1e-6), 9, round=seed + 1) == attackers


@pytest.mark.slow
def test_honest_clients_alone_are_rarely_counted():
    """The gap statistic errs now and then; not in more than a tenth of rounds of 20 Gaussian rows."""
    counted = [estimate_byzantine(distances(rows_of(0, seed=seed)), 9, seed) for seed in range(100)]
    assert np.mean(np.array(counted) > 0) <= 0.1


def test_it_counts_no_more_than_the_rule_withstands_and_nothing_in_tiny_rounds():
    assert estimate_byzantine(distances(rows_of(8)), 3, 1) == 3
    assert estimate_byzantine(distances(rows_of(8)), 0, 1) == 0
    assert estimate_byzantine(distances(rows_of(1, n=3)), 1, 1) == 0
    assert estimate_byzantine(torch.zeros(9, 9, dtype=torch.float64), 3, 1) == 0


def test_colluders_in_one_place_are_counted():
    rows = rows_of(0)
    rows[:6] = -5.0
    assert estimate_byzantine(distances(rows), 9, 1) == 6


@pytest.mark.parametrize("rule", BOUND)
class TestRules:
    @pytest.mark.slow
    def test_auto_is_the_rule_with_the_number_of_the_round(self, rule):
        rows = Updates(rows_of(3))
        out = aggregators.create(rule, f="auto").aggregate(rows, 4)
        told = aggregators.create(rule, f=3).aggregate(rows, 4)
        assert out.estimated_f == 3
        assert told.estimated_f is None
        torch.testing.assert_close(out.delta, told.delta, rtol=1e-5, atol=1e-6)

    def test_malformed_rows_are_not_counted_and_leave_enough(self, rule):
        rows = rows_of(3)
        rows[3:6] = torch.nan
        out = aggregators.create(rule, f="auto").aggregate(Updates(rows), 1)
        assert (out.estimated_f, out.skipped, len(out.dropped)) == (3, None, 3)

    def test_few_clients_are_enough(self, rule):
        auto = aggregators.create(rule, f="auto")
        least = auto.minimum_clients(20)
        assert auto.aggregate(Updates(rows_of(0, n=least)), 1).estimated_f == 0
        if least > 1:
            with pytest.raises(TooFewClients, match=f"N ≥ {least}, got N={least - 1}"):
                auto.check(least - 1)
        assert auto.resolved(20)["f"] == "auto"
        assert auto.proven_kappa(20) is None


# Coordinate-wise rules are compiled for every f: one of them is enough for every day.
@pytest.mark.parametrize("rule", slow_but(["krum"], BOUND))
def test_each_round_has_its_own(rule):
    one = aggregators.create(rule, f="auto")
    assert [one.aggregate(Updates(rows_of(k)), 1).estimated_f for k in (0, 4, 1)] == [0, 4, 1]


@pytest.mark.parametrize("pre", [["nnm"], ["arc"], [{"name": "bucketing", "s": 3}], ["momentum", "nnm"]])
@pytest.mark.parametrize("rule", slow_but(["krum", "trimmed-mean"], ["krum", "trimmed-mean", "bulyan"]))
def test_steps_before_the_rule_have_the_same_number(rule, pre):
    rows = Updates(rows_of(2))
    out = aggregators.create(rule, f="auto", pre=pre).aggregate(rows, 1)
    f = out.estimated_f
    told = aggregators.create(rule, f=f, pre=pre).aggregate(rows, 1)
    torch.testing.assert_close(out.delta, told.delta, rtol=1e-5, atol=1e-6)
    bucketing = any(isinstance(step, dict) for step in pre)
    assert f == (1 if bucketing and rule == "bulyan" else 2), "7 rows are enough for f = 1 of Bulyan"


def test_a_step_keeps_its_state_from_round_to_round():
    auto, told = (
        aggregators.create("trimmed-mean", f=f, pre=[{"name": "momentum", "beta": 0.9}]) for f in ("auto", 3)
    )
    for round in (1, 2, 3):
        rows = Updates(rows_of(3, seed=round))
        deltas = [rule.aggregate(rows, round).delta for rule in (auto, told)]
        torch.testing.assert_close(*deltas, rtol=1e-5, atol=1e-6)


def test_what_is_no_number_is_refused():
    with pytest.raises(ParameterError, match="f"):
        aggregators.create("krum", f="automatic")
    with pytest.raises(ParameterError, match="f"):
        aggregators.create("krum", f=-1)


@pytest.mark.slow
def test_a_run_records_what_was_estimated(tiny, tmp_path):
    pytest.importorskip("fcntl", reason="run folders are locked, which needs Linux or macOS")
    values = {
        **tiny,
        "partition": {"name": "iid", "clients": 10},
        "rounds": 3,
        "attack": {"name": "scaling", "fraction": 0.2, "start": 2},
    }
    auto = run(load_config({**values, "aggregator": {"name": "trimmed-mean", "f": "auto"}}), tmp_path)
    estimated = [record.estimated_f for record in auto.rounds()]
    assert estimated[1:] == [2, 2]
    assert auto.config()["record"]["aggregator"]["f"] == "auto"
    told = run(load_config({**values, "aggregator": {"name": "trimmed-mean", "f": 2}}), tmp_path)
    assert all(record.estimated_f is None for record in told.rounds())
    assert '"estimated_f"' not in (told.path / "rounds.jsonl").read_text()
