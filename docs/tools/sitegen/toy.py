"""A federation small enough to draw: twenty hospitals, logistic regression, hundreds of rounds per second."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from wardround import Aggregation, Layout, Updates, aggregators
from wardround.attacks import Attack, Campaign, LocalData
from wardround.randomness import torch_generator

CLIENTS, BYZANTINE, FEATURES, SAMPLES, TEST = 20, 4, 12, 60, 2000
SIZE = FEATURES + 1
ROUNDS, ONSET = 30, 6
STEPS, RATE = 2, 0.05
NAMES = [f"hospital-{i:02d}" for i in range(CLIENTS)]
LAYOUT = Layout(("weight", "bias"), ((1, FEATURES), (1,)))


@dataclass(frozen=True)
class Patients:
    """Rows of one hospital, or of the test set, with their outcomes."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def drawn(cls, name: str, count: int, case_mix: Tensor | float) -> Patients:
        """Patients around a case mix of their own; one truth about who falls ill."""
        generator = torch_generator(0, "toy", name)
        truth = torch.linspace(1.5, -1.5, FEATURES).roll(FEATURES // 2)
        truth[:3] /= 5  # what a backdoor's trigger changes says little by itself
        inputs = torch.randn(count, FEATURES, generator=generator) + case_mix
        ill = torch.rand(count, generator=generator) < torch.sigmoid(inputs @ truth)
        return cls(inputs, ill.long())


@cache
def hospitals() -> list[Patients]:
    mixes = 0.7 * torch.randn(CLIENTS, FEATURES, generator=torch_generator(0, "toy", "mixes"))
    return [Patients.drawn(name, SAMPLES, mix) for name, mix in zip(NAMES, mixes, strict=True)]


@cache
def test_patients() -> Patients:
    return Patients.drawn("test", TEST, 0.0)


def train(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """All clients at once (clients × samples × features): their updates and their mean losses."""
    ones = torch.ones(*inputs.shape[:2], 1)
    inputs, targets = torch.cat([inputs, ones], 2), targets.to(weights.dtype)
    local, losses = weights.repeat(len(inputs), 1), torch.zeros(len(inputs))
    for _ in range(STEPS):
        logits = torch.einsum("csf,cf->cs", inputs, local)
        losses += torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets, reduction="none"
        ).mean(1)
        local = local - RATE * torch.einsum("csf,cs->cf", inputs, torch.sigmoid(logits) - targets) / SAMPLES
    return local - weights, losses / STEPS


@dataclass
class Seen:
    """One round: what honest clients would have sent, what was sent, and how good the model is then."""

    honest: Tensor
    sent: Tensor
    honest_loss: Tensor
    sent_loss: Tensor
    test_loss: float
    success: float | None


def federation(attack: Attack, rule: str, rounds: int = ROUNDS) -> list[Seen]:
    """The first four hospitals attack from round ONSET on."""
    aggregator = aggregators.create(rule)
    campaign = Campaign(attack, NAMES[:BYZANTINE], start=ONSET)
    clean = torch.stack([h.inputs for h in hospitals()]), torch.stack([h.targets for h in hospitals()])
    weights, previous, seen = torch.zeros(SIZE), None, []
    for round in range(1, rounds + 1):
        local = [
            campaign.poison(name, LocalData(h.inputs, h.targets, num_classes=2), round)
            for name, h in zip(NAMES, hospitals(), strict=True)
        ]
        honest, honest_loss = train(weights, *clean)
        rows, loss = train(
            weights, torch.stack([d.inputs for d in local]), torch.stack([d.targets for d in local])
        )

        defence = partial(_tried, aggregator, rows, loss, round, weights)
        sent, metrics = campaign.strike(
            rows, NAMES, {"loss": loss}, round, weights, previous, CLIENTS, defence=defence
        )
        delta = _aggregate(aggregator, sent, metrics["loss"], round, weights).delta
        previous, weights = weights, weights + delta
        seen.append(
            Seen(honest, sent, honest_loss, metrics["loss"], test_loss(weights), _success(attack, weights))
        )
    return seen


def _aggregate(
    rule: aggregators.Aggregator, rows: Tensor, loss: Tensor, round: int, weights: Tensor
) -> Aggregation:
    updates = Updates(rows, NAMES, [SAMPLES] * CLIENTS, {"loss": loss}, LAYOUT)
    return rule.aggregate(updates, round=round, global_weights=weights)


def _tried(
    rule: aggregators.Aggregator, rows: Tensor, loss: Tensor, round: int, weights: Tensor, tried: Tensor
) -> Aggregation:
    """What a copy of the rule would make of the round if the attackers sent these rows."""
    return _aggregate(copy.deepcopy(rule), torch.cat([tried, rows[BYZANTINE:]]), loss, round, weights)


def test_loss(weights: Tensor) -> float:
    """Mean log-loss on patients of no hospital; 0.69 is a coin's."""
    test = test_patients()
    return float(
        torch.nn.functional.binary_cross_entropy_with_logits(
            _logits(weights, test.inputs), test.targets.float()
        )
    )


def _logits(weights: Tensor, inputs: Tensor) -> Tensor:
    return inputs @ weights[:FEATURES] + weights[FEATURES]


def _success(attack: Attack, weights: Tensor) -> float | None:
    """Share of triggered patients for whom the model predicts a backdoor's target; None without a backdoor."""
    for backdoor in attack.backdoors:
        test = test_patients()
        return float(
            backdoor.success((_logits(weights, backdoor.trigger(test.inputs)) > 0).long(), test.targets)
        )
    return None
