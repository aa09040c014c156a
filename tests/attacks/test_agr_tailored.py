"""AGR-tailored: the strongest row that a given rule lets in."""

from __future__ import annotations

import copy

import pytest
import torch

from wardround import Aggregation, Updates, aggregators, attacks
from wardround.attacks import Campaign, Knowledge

CLIENTS = [f"c{i}" for i in range(20)]
BYZANTINE = 3


def tell(honest, defence, byzantine=1):
    return Knowledge(1, honest=honest, own_rows=tuple(range(byzantine)), defence=defence)


@pytest.mark.parametrize("cut", [0.7, 1.9, 6.2])
def test_finds_the_edge_of_a_rule_that_drops_far_rows(cut):
    """A rule that takes the attacker's row as it is within `cut` honest norms of the mean, else the mean."""
    honest = torch.tensor([[1.0, 0.0]] * 6)

    def defence(rows):
        near = (rows[0] - honest[0]).norm() <= cut
        return Aggregation(rows[0] if near else honest[0])

    row = attacks.create("agr-tailored", steps=20).craft(honest[:1], tell(honest, defence))[0]
    assert row[0].item() == pytest.approx(1 - cut, abs=1e-4)
    assert (row - honest[0]).norm() <= cut


def test_takes_its_limit_where_everything_is_let_in(honest):
    def defence(rows):
        return Aggregation(torch.cat([rows, honest[3:]]).mean(0))

    rows = attacks.create("agr-tailored", limit=8).craft(honest[:3], tell(honest, defence, 3))
    away = (rows[0] - honest.mean(0)).norm() / honest.norm(dim=1).quantile(0.5)
    assert away.item() == pytest.approx(8)


def test_of_strengths_that_do_the_same_it_sends_the_least(honest):
    def saturated(rows):  # anything opposed to the mean moves the result equally far
        return Aggregation(honest.mean(0) * (1 - 0.1 * ((rows[0] - honest.mean(0)).norm() > 0)))

    row = attacks.create("agr-tailored", halvings=5).craft(honest[:1], tell(honest, saturated))[0]
    away = (row - honest.mean(0)).norm() / honest.norm(dim=1).quantile(0.5)
    assert away.item() == pytest.approx(16 / 2**5)


@pytest.mark.parametrize("kind", ["unit", "sign", "std"])
def test_without_a_rule_it_is_the_agnostic_attack(kind, honest, knowledge):
    tailored = attacks.create("agr-tailored", perturbation=kind).craft(honest[:3], knowledge())
    assert torch.equal(tailored, attacks.create("min-max", perturbation=kind).craft(honest[:3], knowledge()))


def harm(rule_name, attack, seed, world, different, noise):
    """How much of the honest mean the aggregate loses along it, over a few rounds."""
    rule = aggregators.create(rule_name)
    campaign = Campaign(attack, CLIENTS[:BYZANTINE], seed=seed)
    weights, previous, total = torch.zeros(1000), None, 0.0
    for t, honest in enumerate(world(seed, 3, different, noise), start=1):

        def defence(rows, t=t, honest=honest, weights=weights):
            matrix = honest.clone()
            matrix[:BYZANTINE] = rows
            return copy.deepcopy(rule).aggregate(Updates(matrix, CLIENTS), round=t, global_weights=weights)

        sent, _ = campaign.strike(honest, CLIENTS, {}, t, weights, previous, 20, defence)
        out = rule.aggregate(Updates(sent, CLIENTS), round=t, global_weights=weights)
        mean = honest[BYZANTINE:].mean(0)
        total += float(torch.dot(mean - out.delta, mean) / mean.square().sum())
        previous, weights = weights, weights + out.delta
    return total / 3


@pytest.mark.parametrize("spread", [(0.3, 0.5), (1.5, 1.0), (3.0, 2.0)])
@pytest.mark.parametrize("rule", ["fedavg", "krum", "multi-krum", "median", "trimmed-mean", "caac"])
def test_hurts_at_least_as_much_as_its_static_form(rule, spread, world):
    """Static: the same direction at the strength Min-Max or Min-Sum give it without knowing the rule."""
    tailored = harm(rule, attacks.create("agr-tailored"), 0, world, *spread)
    for static in ("min-max", "min-sum"):
        plain = harm(rule, attacks.create(static, perturbation="unit"), 0, world, *spread)
        slack = 1e-3 if rule in ("median", "caac") else 0.0
        assert tailored > plain - slack
    # Krum lets in far more than Min-Max dares; the median is saturated by it already.
    if rule in ("fedavg", "krum"):
        assert tailored > 1.5 * plain


def test_the_copy_leaves_the_defender_alone(world):
    rule = aggregators.create("caac")
    honest = next(world(0, 1, 1.0, 1.0))
    before = copy.deepcopy(rule.state_dict())

    def defence(rows):
        return copy.deepcopy(rule).aggregate(Updates(torch.cat([rows, honest[1:]]), CLIENTS), round=1)

    attacks.create("agr-tailored").craft(honest[:1], tell(honest, defence))
    assert repr(rule.state_dict()) == repr(before)
