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
