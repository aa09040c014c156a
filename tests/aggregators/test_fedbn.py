import torch
from torch import nn

from wardround import Layout, Updates, aggregators


def test_batch_norm_stays_at_home_and_the_rest_is_averaged():
    layout = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    rows = torch.randn(5, layout.size, generator=torch.Generator().manual_seed(0))
    samples = [1, 2, 3, 4, 5]
    delta = aggregators.create("fedbn").aggregate(Updates(rows, num_samples=samples, layout=layout)).delta
    average = aggregators.create("fedavg").aggregate(Updates(rows, num_samples=samples)).delta
    # Linear 4×3+3, then weight, bias, running mean and variance of 3 each, then Linear 3×2+2
    assert torch.equal(delta[15:27], torch.zeros(12))
    assert torch.equal(delta[:15], average[:15])
    assert torch.equal(delta[27:], average[27:])


def test_without_layers_to_keep_it_is_fedavg(make_updates):
    updates = make_updates(5, 8)
    average = aggregators.create("fedavg").aggregate(updates).delta
    assert torch.equal(aggregators.create("fedbn").aggregate(updates).delta, average)
    plain = make_updates(5, 8, layout=Layout.of(nn.Linear(3, 2)))
    assert torch.equal(aggregators.create("fedbn").aggregate(plain).delta, average)


def test_the_loop_keeps_batch_norm_with_the_clients():
    assert aggregators.create("fedbn").client_policy == aggregators.ClientPolicy(local_batch_norm=True)
