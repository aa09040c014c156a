import torch

from wardround import Updates, aggregators


def test_sample_counts_do_not_matter():
    out = aggregators.create("mean").aggregate(Updates(torch.tensor([[1.0], [5.0]]), num_samples=[300, 1]))
    assert out.delta.item() == 3
    assert out.weights.tolist() == [0.5, 0.5]
