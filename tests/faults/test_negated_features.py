import torch

from wardround import faults
from wardround.attacks import LocalData


def test_tables_change_their_sign():
    data = LocalData(torch.tensor([[1.0, -2.0]]), torch.tensor([1]), 2)
    assert faults.create("negated-features").spoil(data, torch.Generator()).inputs.tolist() == [[-1.0, 2.0]]


def test_pictures_are_inverted():
    data = LocalData(torch.tensor([[[[0, 55], [200, 255]]]], dtype=torch.uint8), torch.tensor([1]), 2)
    assert faults.create("negated-features").spoil(data, torch.Generator()).inputs.tolist() == [
        [[[255, 200], [55, 0]]]
    ]


def test_a_share_of_the_columns():
    data = LocalData(torch.ones(3, 10), torch.zeros(3, dtype=torch.int64), 2)
    spoilt = faults.create("negated-features", share=0.3).spoil(data, torch.Generator().manual_seed(1)).inputs
    assert (spoilt < 0).sum(1).tolist() == [3, 3, 3]
    assert (spoilt[0] == spoilt).all(), "the same columns for all patients"
