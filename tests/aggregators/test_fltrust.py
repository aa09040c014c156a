import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ParameterError


def trust(rows, root):
    return aggregators.create("fltrust").aggregate(
        Updates(torch.tensor(rows)), root_update=torch.tensor(root)
    )


def test_by_hand():
    """cos = 0.6 and 0.8 to (0, 2): rows become (1.6, 1.2) and (1.2, 1.6), weighed 3 : 4."""
    out = trust([[4.0, 3.0], [30.0, 40.0], [5.0, -1.0]], [0.0, 2.0])
    torch.testing.assert_close(out.weights, torch.tensor([3 / 7, 4 / 7, 0], dtype=torch.float64))
    torch.testing.assert_close(out.delta, torch.tensor([(3 * 1.6 + 4 * 1.2) / 7, (3 * 1.2 + 4 * 1.6) / 7]))
    assert out.flags.tolist() == [False, False, True]


def test_a_huge_row_counts_no_more_than_its_direction():
    assert torch.allclose(trust([[1.0, 0.0], [1e30, 0.0]], [2.0, 0.0]).delta, torch.tensor([2.0, 0.0]))


@pytest.mark.parametrize("rows", [[[-1.0, 0.0], [-2.0, 0.1]], [[0.0, 0.0], [0.0, 0.0]]])
def test_nobody_trusted_gives_zero(rows):
    out = trust(rows, [1.0, 0.0])
    assert out.delta.tolist() == [0, 0]
    assert out.flags.all()


def test_a_root_update_of_zero_trusts_nobody():
    assert trust([[1.0, 0.0]], [0.0, 0.0]).delta.tolist() == [0, 0]


def test_a_root_update_that_is_not_finite_skips_the_round():
    out = trust([[1.0, 0.0]], [torch.nan, 0.0])
    assert out.skipped == "the server's own root update is not finite"
    assert out.delta.tolist() == [0, 0]


def test_root_update_is_asked_for_and_checked():
    with pytest.raises(ParameterError, match="fltrust needs root_update"):
        aggregators.create("fltrust").aggregate(Updates(torch.ones(3, 2)))
    with pytest.raises(ParameterError, match="root_update has 3 entries, the updates have 2"):
        trust([[1.0, 0.0]], [1.0, 0.0, 0.0])
