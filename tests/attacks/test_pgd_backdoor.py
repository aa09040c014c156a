"""PGD backdoor: no row leaves the ball."""

import pytest
import torch

from wardround import attacks


def test_rows_stay_within_the_ball():
    known = attacks.Knowledge(round=2, global_weights=torch.ones(9), previous_global_weights=torch.zeros(9))
    rows = torch.tensor([[5.0] * 9, [0.1] * 9])
    sent = attacks.create("pgd-backdoor", radius=1.5, boost=2).craft(rows, known)
    assert sent[0].norm().item() == pytest.approx(4.5)
    torch.testing.assert_close(sent[1], rows[1] * 2)
    torch.testing.assert_close(sent[0] / sent[0].norm(), rows[0] / rows[0].norm())


def test_the_first_round_has_no_ball():
    rows = torch.ones(1, 3)
    assert torch.equal(attacks.create("pgd-backdoor").craft(rows, attacks.Knowledge(round=1)), rows)
