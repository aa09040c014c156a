"""Any rule within each outcome."""

import copy

import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ConfigError, ParameterError
from wardround.experiments import load_config
from wardround.runs.runner import build
from wardround.updates import Parts

N, D = 12, 40


@pytest.fixture
def updates():
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(5, 50, (N, 2), generator=generator).double()
    counts[0, 1] = counts[1, 0] = 0
    rows = torch.randn(N, 2, D, generator=generator) * (counts > 0)[:, :, None]
    return Updates(rows.sum(1), num_samples=counts.sum(1), parts=Parts(rows, counts))


def test_equal_hospitals_give_fedavg(updates):
    """Where no count is above the median one, means within outcomes add up to the mean."""
    parts = Parts(updates.parts.rows[2:], torch.full((N - 2, 2), 10.0).double())
    equal = Updates(parts.rows.sum(1), parts=parts)
    within = aggregators.create("fedavg", strata=True).aggregate(equal)
    torch.testing.assert_close(within.delta, aggregators.create("fedavg").aggregate(equal).delta)
    assert float(within.weights.sum()) == pytest.approx(1)


def test_it_is_the_rule_on_the_rows_of_each_outcome(updates):
    out = aggregators.create("median", strata=True).aggregate(updates)
    counts, rows = updates.parts.counts, updates.parts.rows
    capped, expected = [], []
    for outcome in (0, 1):
        held = counts[:, outcome] > 0
        own = rows[held, outcome] * (counts.sum(1) / counts[:, outcome])[held].float()[:, None]
        expected.append(own.quantile(0.5, dim=0))
        capped.append(counts[held, outcome].clamp(max=float(counts[held, outcome].quantile(0.5))).sum())
    shares = torch.stack(capped) / sum(capped)
    torch.testing.assert_close(out.delta, (shares[:, None].float() * torch.stack(expected)).sum(0))


def test_a_hospital_of_one_outcome_is_no_outlier(updates):
    """Half of the hospitals have only one outcome: the median of whole updates leaves it out."""
    push = torch.ones(D)
    rows = torch.zeros(N, 2, D)
    rows[:8, 0], rows[8:, 1] = -push, push
    counts = torch.zeros(N, 2).double()
    counts[:8, 0], counts[8:, 1] = 10, 10
    sent = Updates(rows.sum(1), num_samples=counts.sum(1), parts=Parts(rows, counts))
    fedavg = aggregators.create("fedavg").aggregate(sent).delta
    torch.testing.assert_close(aggregators.create("median", strata=True).aggregate(sent).delta, fedavg)
    assert (aggregators.create("median").aggregate(sent).delta - fedavg).norm() > 1


def test_rules_with_a_memory_have_one_for_each_outcome_and_go_on_from_it(updates):
    one = aggregators.create("caac", strata=True)
    one.aggregate(updates, 1)
    other = aggregators.create("caac", strata=True)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(one.aggregate(updates, 2).delta, other.aggregate(updates, 2).delta)


def test_pre_aggregations_work_within_outcomes_too(updates):
    rule = aggregators.create("trimmed-mean", f=2, pre=["nnm"], strata=True)
    assert torch.isfinite(rule.aggregate(updates).delta).all()
    assert rule.resolved(N)["strata"] is True


def test_an_outcome_that_too_few_hold_is_averaged(updates):
    rule = aggregators.create("krum", f=4, strata=True)
    few = updates.select(range(9))
    assert torch.isfinite(rule.aggregate(few).delta).all()


def test_whole_updates_are_refused(updates):
    with pytest.raises(ParameterError, match=r"split by outcome"):
        aggregators.create("median", strata=True).aggregate(Updates(updates.matrix))


@pytest.mark.parametrize("name", ["fltrust", "caac-guard"])
def test_rules_that_cannot_are_refused_by_name(name):
    with pytest.raises(ParameterError, match=name):
        aggregators.create(name, strata=True)


def config(**sections):
    base = {
        "dataset": {"name": "synthetic", "samples": 400},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.1},
        "model": {"name": "logistic"},
        "training": {"optimizer": "sgd", "lr": 0.05},
        "aggregator": {"name": "median", "strata": True},
        "rounds": 2,
    }
    return load_config({**base, **sections}, "test")


def test_a_run_splits_updates_for_it():
    record = build(config()).step(1)
    assert record.skipped is None
    assert record.metrics["auroc"] > 0


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"training": {"optimizer": "sgd", "lr": 0.05, "strata": "none"}}, r"training\.strata is none"),
        ({"training": {"optimizer": "sgd", "lr": 0.05, "method": "scaffold"}}, "control variates"),
        ({"privacy": {"dp": {"epsilon": 8.0}}}, r"privacy\.dp"),
        (
            {"aggregator": {"name": "fedavg"}, "training": {"strata": "outcome", "client_momentum": 0.9}},
            "client_momentum",
        ),
    ],
)
def test_what_keeps_updates_whole_is_said(sections, why):
    with pytest.raises(ConfigError, match=why):
        build(config(**sections)).step(1)
