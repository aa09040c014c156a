"""Slow drift: the ramp of the protocol and a direction that is kept."""

from __future__ import annotations

import pytest
import torch

from wardround import attacks


def protocol(benign, direction, t, start, end):
    """Section 9.3, spelt out."""
    if t < start:
        return benign
    alpha = min(1.0, max(0.0, (t - start) / (end - start)))
    return (1 - alpha) * benign + alpha * direction * benign.norm(p=2)


def test_ramp_is_the_protocols(honest, knowledge):
    drift = attacks.create("slow-drift", ramp=20)
    direction = -honest[:3].mean(0) / honest[:3].mean(0).norm()
    for t in range(5, 40):
        own = honest[:3] if t == 5 else honest[3:6] * (1 + t)
        rows = drift.craft(own, knowledge(round=t, start=5, honest=own))
        for row, benign in zip(rows, own, strict=True):
            torch.testing.assert_close(row, protocol(benign, direction, t, 5, 25))


@pytest.mark.parametrize(("t", "strength"), [(1, 0), (2, 0.05), (11, 0.5), (21, 1), (50, 1)])
def test_default_ramp_is_twenty_rounds(t, strength):
    own, drift = torch.tensor([[0.0, 2.0]]), attacks.create("slow-drift")
    assert drift.craft(own, attacks.Knowledge(round=t))[0, 1].item() == pytest.approx(2 * (1 - 2 * strength))


def test_full_strength_keeps_the_honest_norm(honest, knowledge):
    drift = attacks.create("slow-drift", ramp=1)
    drift.craft(honest[:3], knowledge(round=1, honest=honest[:3]))
    rows = drift.craft(honest[3:6], knowledge(round=9, honest=honest[3:6]))
    torch.testing.assert_close(rows.norm(dim=1), honest[3:6].norm(dim=1))


def test_opposite_of_nothing_is_nothing():
    zero = torch.zeros(2, 3)
    assert not attacks.create("slow-drift").craft(zero, attacks.Knowledge(round=9)).any()
