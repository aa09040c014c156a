"""Profile-aware: exactly its own past in norm and cosine, and what that buys against CAAC-FL."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators, attacks
from wardround.attacks import Campaign, Knowledge

START, ROUNDS, BYZANTINE = 12, 28, 4
CLIENTS = [f"c{i}" for i in range(20)]


@pytest.fixture
def rounds():
    generator = torch.Generator().manual_seed(2)
    updates = [torch.randn(1, 50, generator=generator).double() + 0.5 for _ in range(14)]
    steps = [torch.randn(50, generator=generator).double() * 0.3 + 0.5 for _ in range(14)]
    return updates, steps


def tell(rounds, t):
    zero = torch.zeros(50, dtype=torch.float64)
    return Knowledge(t, zero + rounds[1][t - 1], zero, clients=("me",), start=12)


@pytest.mark.parametrize("k", [0.0, 1.0, 2.0])
def test_norm_and_cosine_are_its_own_past(rounds, k):
    attack = attacks.create("profile-aware", k=k)
    for t in range(1, 12):
        attack.observe(rounds[0][t - 1], tell(rounds, t))
    row = attack.craft(rounds[0][11], tell(rounds, 12))[0].numpy()
    past = range(1, 11)  # rounds 2 to 11: the ten before this one
    norms = [rounds[0][i][0].norm().item() for i in past]
    cosines = [torch.cosine_similarity(rounds[0][i][0], rounds[1][i], dim=0).item() for i in past]
    step = rounds[1][11].numpy()
    assert np.linalg.norm(row) == pytest.approx(np.mean(norms) + k * np.std(norms, ddof=1))
    assert row @ step / np.linalg.norm(row) / np.linalg.norm(step) == pytest.approx(min(cosines))


def test_the_rest_opposes_the_running_average_of_global_updates(rounds):
    attack = attacks.create("profile-aware")
    average = None
    for t in range(1, 13):
        attack.observe(rounds[0][t - 1], tell(rounds, t))
        step = rounds[1][t - 1].numpy()
        average = step if average is None else 0.9 * average + 0.1 * step
    row = attack.craft(rounds[0][11], tell(rounds, 12))[0].numpy()
    ahead = step / np.linalg.norm(step)
    rest = row - (row @ ahead) * ahead
    hidden = average - (average @ ahead) * ahead
    assert rest @ hidden / np.linalg.norm(rest) / np.linalg.norm(hidden) == pytest.approx(-1)


def test_honest_until_it_knows_itself(rounds):
    attack = attacks.create("profile-aware")
    for t in (1, 2):
        own = rounds[0][t - 1]
        assert torch.equal(attack.craft(own, tell(rounds, t)), own)
    assert not torch.equal(attack.craft(rounds[0][2], tell(rounds, 3)), rounds[0][2])
    fresh = attacks.create("profile-aware")
    for t in (1, 2, 3):
        assert torch.equal(fresh.craft(rounds[0][0], Knowledge(t)), rounds[0][0])  # no global model is known


def test_it_learns_before_the_window_opens(honest):
    campaign = Campaign(attacks.create("profile-aware"), ["c0"], start=4)
    clients = [f"c{i}" for i in range(10)]
    zero = torch.zeros(honest.shape[1], dtype=honest.dtype)
    for t in range(1, 5):
        step = honest.mean(0) + t * honest[3]
        sent, _ = campaign.strike(honest * (1 + 0.01 * t), clients, {}, t, zero + step, zero, 10)
        assert torch.equal(sent[0], honest[0] * (1 + 0.01 * t)) == (t < 4)


def harm_to_caac(attack, seed, world, different, noise):
    """How much of the honest mean the aggregate loses along it, and how often attackers are flagged."""
    rule = aggregators.create("caac")
    campaign = Campaign(attack, CLIENTS[:BYZANTINE], start=START, seed=seed)
    weights, previous, harm, flags = torch.zeros(1000), None, [], []
    for t, honest in enumerate(world(seed, ROUNDS, different, noise), start=1):
        sent, _ = campaign.strike(honest, CLIENTS, {}, t, weights, previous, 20)
        out = rule.aggregate(Updates(sent, CLIENTS), round=t)
        if t >= START:
            mean = honest[BYZANTINE:].mean(0)
            harm.append(float(torch.dot(mean - out.delta, mean) / mean.square().sum()))
            flags.append(out.flags[:BYZANTINE].double().mean().item())
        previous, weights = weights, weights + out.delta
    return np.mean(harm), np.mean(flags)


STATIC = {
    "sign-flip": {},
    "norm-keeping sign-flip": {"scale": 1},
    "noise": {},
    "slow-drift": {},
    "ipm": {"match_norm": True, "knowledge": "colluders"},
}


@pytest.mark.slow
@pytest.mark.parametrize("static", STATIC)
def test_where_clients_differ_it_hurts_caac_more_than_static_attackers_with_no_more_knowledge(static, world):
    """The protocol's setting: clients differ from each other more than they agree."""
    name = static.split()[-1]
    for seed in (0, 1):
        plain, _ = harm_to_caac(attacks.create(name, **STATIC[static]), seed, world, 3.0, 2.0)
        adaptive, flagged = harm_to_caac(attacks.create("profile-aware"), seed, world, 3.0, 2.0)
        assert adaptive > plain
        assert flagged == 0


def test_where_clients_are_alike_it_does_not(world):
    """What the documentation admits: then its past cosine is high, and keeping to it leaves little room."""
    plain, _ = harm_to_caac(attacks.create("sign-flip", scale=1), 0, world, 0.3, 0.5)
    adaptive, flagged = harm_to_caac(attacks.create("profile-aware"), 0, world, 0.3, 0.5)
    assert adaptive < plain
    assert flagged == 0
