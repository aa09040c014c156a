"""Inner product manipulation by its definition."""

from __future__ import annotations

import pytest
import torch

from wardround import attacks


@pytest.mark.parametrize("eps", [0.1, 0.5, 10])
def test_is_minus_eps_times_the_known_mean(eps, honest, knowledge):
    rows = attacks.create("ipm", eps=eps).craft(honest[:2], knowledge(2))
    expected = -eps * sum(honest) / len(honest)
    torch.testing.assert_close(rows, expected.repeat(2, 1))


def test_colluders_know_less(honest, knowledge):
    rows = attacks.create("ipm", knowledge="colluders").craft(honest[:2], knowledge(2, honest=honest[:2]))
    torch.testing.assert_close(rows[0], -0.25 * (honest[0] + honest[1]))


def test_norm_keeping_form_opposes_the_mean_at_the_own_norm(honest, knowledge):
    rows = attacks.create("ipm", match_norm=True).craft(honest[:3], knowledge())
    torch.testing.assert_close(rows.norm(dim=1), honest[:3].norm(dim=1))
    cosines = torch.cosine_similarity(rows, honest.mean(0)[None], dim=1)
    torch.testing.assert_close(cosines, -torch.ones(3, dtype=cosines.dtype))


def test_nothing_to_oppose(knowledge):
    zero = torch.zeros(2, 3)
    assert not attacks.create("ipm", match_norm=True).craft(zero, attacks.Knowledge(1, honest=zero)).any()
