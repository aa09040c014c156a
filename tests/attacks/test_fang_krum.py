"""Fang's Krum attack against the paper's definitions, with Krum written out naively."""

from __future__ import annotations

import math

import pytest
import torch

from wardround import attacks


def naive_krum(rows, f):
    """The index of the row with the least sum of squared distances to its n−f−2 nearest others."""
    n = len(rows)
    scores = []
    for i in range(n):
        others = sorted(((rows[i] - rows[j]) ** 2).sum().item() for j in range(n) if j != i)
        scores.append(sum(others[: max(1, n - f - 2)]))
    return min(range(n), key=scores.__getitem__)


def bound(benign, c):
    """The paper's upper bound of λ for m workers of which c are compromised, w_Re at the origin."""
    nb, d = benign.shape
    m = nb + c
    sums = []
    for i in range(nb):
        others = sorted(((benign[i] - benign[j]) ** 2).sum().item() for j in range(nb) if j != i)
        sums.append(sum(others[: m - c - 2]))
    return math.sqrt(min(sums) / ((m - 2 * c - 1) * d)) + benign.norm(dim=1).max().item() / math.sqrt(d)


@pytest.fixture
def spread():
    """Updates that differ more than they agree: where the attack has room."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(12, 40, generator=generator, dtype=torch.float64) + 0.1


def tell(rows, byzantine):
    return attacks.Knowledge(1, honest=rows, own_rows=tuple(range(byzantine)), seed=1)


def test_direction_and_strength_are_the_papers(spread):
    c = 3
    rows = attacks.create("fang-krum", epsilon=0).craft(spread[:c], tell(spread, c))
    signs = spread[naive_krum(spread, c)].sign()
    step = -(rows[0] * signs).mean().item()
    torch.testing.assert_close(rows, (-step * signs).repeat(c, 1))
    halvings = math.log2(bound(spread[c:], c) / step)
    assert halvings == pytest.approx(round(halvings), abs=1e-9)
    assert round(halvings) > 0

    def chosen(strength):
        return naive_krum(torch.cat([(-strength * signs).repeat(c, 1), spread[c:]]), c) < c

    assert chosen(step)
    assert not chosen(2 * step)  # it stopped at the first λ that is taken


def test_supporters_lie_within_epsilon(spread):
    rows = attacks.create("fang-krum", epsilon=0.01).craft(spread[:4], tell(spread, 4))
    distances = (rows[1:] - rows[0]).norm(dim=1)
    assert (distances <= 0.01).all()
    assert (distances > 0).all()
    assert naive_krum(torch.cat([rows, spread[4:]]), 4) < 4


def test_colluders_simulate_with_their_own_updates(spread):
    c = 5
    own = spread[:c]
    attack = attacks.create("fang-krum", knowledge="colluders", epsilon=0)
    rows = attack.craft(own, attacks.Knowledge(1, honest=own, own_rows=tuple(range(c))))
    signs = own.mean(0).sign()
    step = -(rows[0] * signs).mean().item()
    torch.testing.assert_close(rows, (-step * signs).repeat(c, 1))
    taken = [naive_krum(torch.cat([(-step * signs).repeat(k, 1), own]), k) < k for k in range(1, c + 1)]
    assert any(taken)


def test_search_ends_where_nothing_is_ever_taken():
    """Equal honest updates: Krum takes one of them whatever the attackers do."""
    honest = torch.ones(9, 5, dtype=torch.float64)
    rows = attacks.create("fang-krum", threshold=1e-3).craft(honest[:2], tell(honest, 2))
    assert torch.isfinite(rows).all()
    assert 1e-3 <= rows[0].abs().max() < 2e-3
