"""Mimic: one honest client, the same one in every round."""

from __future__ import annotations

import pytest
import torch

from wardround import attacks
from wardround.attacks import Campaign
from wardround.errors import ParameterError


def test_copies_the_first_honest_client(honest, knowledge):
    rows = attacks.create("mimic").craft(honest[:3], knowledge())
    assert torch.equal(rows, honest[3].repeat(3, 1))


def test_copies_the_chosen_one(honest, knowledge):
    rows = attacks.create("mimic", client=4).craft(honest[:3], knowledge())
    assert torch.equal(rows, honest[7].repeat(3, 1))
    with pytest.raises(ParameterError, match="below the number of honest clients, 7, got 7"):
        attacks.create("mimic", client=7).craft(honest[:3], knowledge())


def test_keeps_to_its_client_and_is_honest_without_it(honest):
    campaign = Campaign(attacks.create("mimic"), ["c1"])
    weights = honest[0]

    def send(rows):
        names = [f"c{i}" for i in rows]
        sent, _ = campaign.strike(honest[rows], names, {}, 1, weights, weights, 10)
        return sent[rows.index(1)]

    assert torch.equal(send([3, 1, 5]), honest[3])
    assert torch.equal(send([0, 1, 3, 5]), honest[3])
    assert torch.equal(send([0, 1, 5]), honest[1])
    assert torch.equal(send([1, 9, 3]), honest[3])


def test_finds_its_own_rows_by_comparison(honest):
    rows = attacks.create("mimic").craft(honest[[0, 1, 4]], attacks.Knowledge(round=1, honest=honest))
    assert torch.equal(rows[0], honest[2])


def test_alone_it_has_nobody_to_copy(honest):
    assert torch.equal(attacks.create("mimic").craft(honest[:2], attacks.Knowledge(round=1)), honest[:2])


def test_warm_up_finds_the_client_that_differs_most():
    generator = torch.Generator().manual_seed(0)
    attack = attacks.create("mimic", warmup=4)
    assert attack.observes
    names = tuple(f"c{i}" for i in range(8))
    for t in range(1, 6):
        honest = torch.randn(8, 50, generator=generator) * 0.2
        honest[5] += 3  # goes another way than all the others, round after round
        knowledge = attacks.Knowledge(round=t, honest=honest, own_rows=(0, 1), visible=names)
        attack.observe(honest[:2], knowledge)
        sent = attack.craft(honest[:2], knowledge)
        expected = honest[:2] if t < 4 else honest[5].repeat(2, 1)
        assert torch.equal(sent, expected)
    again = attacks.create("mimic", warmup=4)
    again.load_state_dict(attack.state_dict())
    assert again.chosen == "c5"


def test_a_warm_up_that_is_cut_short_goes_on():
    generator = torch.Generator().manual_seed(1)
    rounds = [torch.randn(6, 20, generator=generator) for _ in range(4)]
    names = tuple(f"c{i}" for i in range(6))

    def study(attack, some):
        for t in some:
            attack.observe(
                rounds[t][:1], attacks.Knowledge(round=t + 1, honest=rounds[t], own_rows=(0,), visible=names)
            )
        return attack

    straight = study(attacks.create("mimic", warmup=4), range(4))
    half = study(attacks.create("mimic", warmup=4), range(2))
    resumed = attacks.create("mimic", warmup=4)
    resumed.load_state_dict(half.state_dict())
    assert study(resumed, range(2, 4)).chosen == straight.chosen is not None


def test_the_direction_is_the_running_mean_of_where_the_honest_spread():
    """Oja's rule: after round t it is t/(t + 1) of its own direction and 1/(t + 1) of the new one."""
    attack = attacks.create("mimic", warmup=3)
    attack.direction = torch.tensor([3.0, 0.0], dtype=torch.float64)
    rows = torch.tensor([[9.0, 9.0], [2.0, 2.0], [0.0, 0.0]])  # the first is its own
    knowledge = attacks.Knowledge(round=1, honest=rows, own_rows=(0,), visible=("a", "b", "c"))
    half = 2**-0.5
    attack.observe(rows[:1], knowledge)
    first = torch.tensor([1 + half, half], dtype=torch.float64) / 2
    torch.testing.assert_close(attack.direction, first)
    attack.observe(rows[:1], knowledge)
    expected = first / first.norm() * 2 / 3 + torch.tensor([half, half], dtype=torch.float64) / 3
    torch.testing.assert_close(attack.direction, expected)
    assert attack.along["b"] == pytest.approx(float(first.sum() + expected.sum()))
    assert attack.along["c"] == -attack.along["b"]
