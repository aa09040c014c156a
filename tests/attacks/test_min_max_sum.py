"""Min-Max and Min-Sum at the boundary of their constraints."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround import attacks


def perturbation_of(known, kind):
    mean = known.mean(0)
    return {"std": -known.std(0), "unit": -mean / mean.norm(), "sign": -mean.sign()}[kind]


def excess(name, known, row):
    """Left side over right side of the attack's constraint, straight from the paper."""
    to_known = ((known - row) ** 2).sum(1)
    pairwise = ((known[:, None] - known[None]) ** 2).sum(2)
    if name == "min-max":
        return (to_known.max().sqrt() / pairwise.max().sqrt()).item()
    return (to_known.sum() / pairwise.sum(1).max()).item()


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
@pytest.mark.parametrize("kind", ["std", "unit", "sign"])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 12), d=st.integers(1, 80), offset=st.floats(-5, 5))
def test_within_the_bound_and_one_per_cent_further_not(name, kind, seed, n, d, offset):
    known = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    attack = attacks.create(name, perturbation=kind)
    row = attack.craft(known[:1], attacks.Knowledge(round=1, honest=known))[0]
    mean, p = known.mean(0), perturbation_of(known, kind)
    gamma = torch.dot(row - mean, p) / p.dot(p)
    torch.testing.assert_close(row, mean + gamma * p)  # along p …
    assert gamma > 0
    assert excess(name, known, row) <= 1  # … inside …
    assert excess(name, known, mean + 1.01 * gamma * p) > 1  # … and at the edge


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_float32_and_many_coordinates(name):
    known = torch.randn(8, 50_000, generator=torch.Generator().manual_seed(0)) * 1e-3 + 0.5
    row = attacks.create(name).craft(known[:2], attacks.Knowledge(round=1, honest=known))[0].double()
    known = known.double()
    mean = known.mean(0)
    assert excess(name, known, row) <= 1 + 1e-6
    assert excess(name, known, mean + 1.01 * (row - mean)) > 1


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_bisection_as_in_the_paper_finds_the_same(name, honest, knowledge):
    mean, p = honest.mean(0), -honest.std(0)
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(name, honest, mean + middle * p) <= 1 else (low, middle)
    row = attacks.create(name).craft(honest[:2], knowledge(2))[0]
    torch.testing.assert_close(row, mean + low * p, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_identical_updates_leave_no_room(name):
    known = torch.ones(4, 3)
    row = attacks.create(name, perturbation="unit").craft(known[:1], attacks.Knowledge(1, honest=known))
    torch.testing.assert_close(row, known[:1])
