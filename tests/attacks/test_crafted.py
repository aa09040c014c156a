"""The crafted attack: against the sign of the last global step."""

from __future__ import annotations

import torch

from wardround import attacks


def test_crafted_steps_back_by_the_sign(honest, knowledge):
    seen = knowledge(2)
    rows = attacks.create("crafted", lambda_step=0.3).craft(honest[:2], seen)
    step = seen.global_weights - seen.previous_global_weights
    torch.testing.assert_close(rows, torch.where(step > 0, -0.3, 0.3).to(rows.dtype).repeat(2, 1))


def test_crafted_is_honest_without_a_last_step(honest):
    rows = attacks.create("crafted").craft(honest[:2], attacks.Knowledge(round=1, global_weights=honest[0]))
    assert torch.equal(rows, honest[:2])
