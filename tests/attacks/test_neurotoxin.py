"""Neurotoxin: the coordinates of the honest clients are left alone."""

import torch

from wardround import attacks


def test_the_largest_moves_are_spared():
    step = torch.linspace(-1, 0.9, 40)
    known = attacks.Knowledge(round=2, global_weights=step, previous_global_weights=torch.zeros(40))
    sent = attacks.create("neurotoxin", top=0.1, boost=3).craft(torch.ones(2, 40), known)
    spared = set(step.abs().topk(4).indices.tolist())
    assert {i for i in range(40) if sent[0, i] == 0} == spared
    assert (sent[:, [i for i in range(40) if i not in spared]] == 3).all()


def test_before_the_first_step_all_is_sent():
    assert attacks.create("neurotoxin").craft(torch.ones(1, 5), attacks.Knowledge(round=1)).tolist() == [
        [1.0] * 5
    ]
