import pytest
import torch

from wardround import Updates, aggregators


def test_by_hand():
    """On a line with f = 1 of 6, three nearest others: 2 has 1 + 1 + 4 = 6, the least."""
    out = aggregators.create("krum", f=1).aggregate(
        Updates(torch.tensor([[0.0], [1], [2], [3], [4.5], [90]]))
    )
    assert out.scores.tolist() == pytest.approx([14, 6, 6, 7.25, 20.75, 7310.25 + 7569 + 7744])
    assert out.delta.item() == 2  # shares 6 with 1 and is nearer to everyone
    assert out.weights.tolist() == [0, 0, 1, 0, 0, 0]


def test_the_choice_is_a_row_bit_for_bit(make_updates):
    updates = make_updates(11, 1000)
    out = aggregators.create("krum").aggregate(updates)
    assert torch.equal(out.delta, updates.matrix[int(out.weights.argmax())])
