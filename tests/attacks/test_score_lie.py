"""Lies about one's own loss, alone and agreed upon."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wardround import attacks
from wardround.attacks import Campaign

CLIENTS = [f"c{i}" for i in range(20)]
LOSS = torch.linspace(0.2, 2.0, 20, dtype=torch.float64)


def report(attack, liars):
    matrix = torch.zeros(20, 2)
    campaign = Campaign(attack, liars)
    sent, reported = campaign.strike(matrix, CLIENTS, {"loss": LOSS}, 1, matrix[0], None, 20)
    assert torch.equal(sent, matrix)  # the update is left alone
    return reported["loss"]


def score(loss):
    return 1 / (loss + 1e-6)


@pytest.mark.parametrize("factor", [10, 3])
def test_a_liar_multiplies_its_score(factor):
    reported = report(attacks.create("score-lie", factor=factor), ["c3", "c9"])
    expected = LOSS.clone()
    expected[[3, 9]] /= factor
    assert torch.equal(reported, expected)
    assert score(reported[3]) / score(LOSS[3]) == pytest.approx(factor, rel=1e-4)


@pytest.mark.parametrize("level", ["omniscient", "colluders"])
def test_colluders_agree_on_the_upper_quantile_of_what_they_see(level):
    liars = ["c3", "c9", "c15"]
    reported = report(attacks.create("score-lie", collude=True, quantile=0.9, knowledge=level), liars)
    seen = LOSS.numpy() if level == "omniscient" else LOSS.numpy()[[3, 9, 15]]
    agreed = np.quantile(1 / (seen + 1e-6), 0.9)
    for row in (3, 9, 15):
        assert score(reported[row].item()) == pytest.approx(agreed)
    honest = [i for i in range(20) if i not in (3, 9, 15)]
    assert torch.equal(reported[honest], LOSS[honest])


def test_the_agreed_score_is_inside_the_honest_range():
    reported = report(attacks.create("score-lie", collude=True), CLIENTS[10:14])
    assert score(LOSS).min() < score(reported[10]) <= score(LOSS).max()


def test_single_liars_know_nothing_of_others():
    assert attacks.create("score-lie").knowledge == "own"
    assert attacks.create("score-lie", collude=True).knowledge == "omniscient"
    assert attacks.create("score-lie", collude=True, knowledge="colluders").knowledge == "colluders"


def test_nothing_reported_nothing_to_lie_about():
    reported = attacks.create("score-lie").report({"accuracy": torch.ones(1)}, attacks.Knowledge(round=1))
    assert reported == {"accuracy": torch.ones(1)}


def test_colluders_ignore_losses_that_are_not_numbers():
    metrics = {"loss": torch.tensor([torch.nan, 0.5])}
    reported = attacks.create("score-lie", collude=True).report(
        metrics, attacks.Knowledge(1, metrics=metrics)
    )
    torch.testing.assert_close(reported["loss"], torch.tensor([0.5, 0.5]))
