import torch

from wardround import Updates, aggregators


def test_by_hand():
    rows = torch.tensor([[1.0, 900], [2, -8], [10, 3], [4, 5], [-70, 4]])
    out = aggregators.create("trimmed-mean", f=1).aggregate(Updates(rows))
    torch.testing.assert_close(out.delta, torch.tensor([7 / 3, 4.0]))


def test_f_zero_is_the_mean_and_not_zeros(make_updates, both_paths):
    updates = make_updates(9, 50)
    out = aggregators.create("trimmed-mean", f=0).aggregate(updates)
    torch.testing.assert_close(out.delta, updates.matrix.mean(0))


def test_largest_f_is_the_median(make_updates, both_paths):
    updates = make_updates(9, 50)
    out = aggregators.create("trimmed-mean", f=4).aggregate(updates)
    assert torch.equal(out.delta, aggregators.create("median").aggregate(updates).delta)
