"""The attacker who behaves on all outcomes but the rarest."""

from __future__ import annotations

import torch

from wardround import attacks
from wardround.attacks.by_outcome import OutcomeCampaigns
from wardround.updates import Parts


def test_whole_updates_are_reversed_but_for_the_bias(honest, knowledge):
    rows = attacks.create("rare-outcome", eps=2).craft(honest[:2], knowledge(2))
    mean = honest.mean(0)
    torch.testing.assert_close(rows[0, :-1], -2 * mean[:-1])
    torch.testing.assert_close(rows[1, -1], mean[-1])


def test_the_bias_is_reversed_on_request(honest, knowledge):
    rows = attacks.create("rare-outcome", keep_bias=False).craft(honest[:2], knowledge(2))
    torch.testing.assert_close(rows[0], -honest.mean(0))


def strike(parts, attack="rare-outcome"):
    clients = [f"c{i}" for i in range(len(parts.rows))]
    campaigns = OutcomeCampaigns(attacks.Campaign(attacks.create(attack), clients[:2]))
    return campaigns.strike(
        parts,
        lambda campaign, rows, outcome: campaign.strike(rows, clients, {}, 1, None, None, len(clients)),
    )[0]


def test_only_parts_of_the_rarest_outcome_are_crafted():
    rows = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[90.0, 10.0]] * 5, dtype=torch.float64)
    sent = strike(Parts(rows, counts))
    assert torch.equal(sent.rows[:, 0], rows[:, 0])
    assert torch.equal(sent.rows[2:], rows[2:])
    torch.testing.assert_close(sent.rows[0, 1, :-2], -rows[:, 1].mean(0)[:-2])


def test_who_claims_an_outcome_has_counts_that_add_up():
    """A server drops updates whose counts do not: attackers know that."""
    rows = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[90.0, 10.0]] * 5, dtype=torch.float64)
    counts[0], rows[0, 1] = torch.tensor([100.0, 0.0]), 0.0
    sent = strike(Parts(rows, counts))
    assert sent.counts[0].tolist() == [90.0, 10.0]
    assert torch.equal(sent.counts[1:], counts[1:])
    few = counts.clone()
    few[0, 0] = 4.0
    assert strike(Parts(rows, few)).counts[0].tolist() == [1.0, 3.0]
