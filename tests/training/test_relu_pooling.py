"""ReLU and pooling in one compiled step: torch's values and gradients, to the bit."""

import pytest
import torch
from torch import nn

from wardround.models.images import HalvingMaxPool
from wardround.training.relu_pooling import ReluPooling, fuse_relu_and_pooling

pytest.importorskip("numba")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 6, 12, 10), (2, 5, 7, 9), (1, 1, 2, 2)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_values_and_gradients_are_those_of_torch(dtype, shape, channels_last):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(*shape, generator=generator).mul(2).round().to(dtype)  # with many ties and zeros
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    own, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    pooled = ReluPooling()(own)
    expected = nn.MaxPool2d(2)(nn.functional.relu(theirs))
    assert torch.equal(pooled, expected)
    gradient = torch.randn(expected.shape, generator=generator).to(dtype)
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(own.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_not_a_number_stays_none(dtype):
    images = torch.full((1, 1, 2, 8), -torch.inf, dtype=dtype)
    images[0, 0, 0, 2], images[0, 0, 1, 5] = torch.nan, -torch.nan
    images[0, 0, 0, 6] = torch.inf
    assert torch.isnan(-torch.tensor(torch.nan, dtype=dtype).abs())
    pooled = ReluPooling()(images)[0, 0, 0]
    assert pooled[0] == 0
    assert bool(pooled[1].isnan())
    assert bool(pooled[2].isnan())
    assert pooled[3] == torch.inf


def test_only_a_relu_before_pooling_by_two_is_replaced():
    kept = [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True)]
    for pooling in (nn.MaxPool2d(2), HalvingMaxPool(), nn.MaxPool2d((2, 2), 2)):
        network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), pooling), nn.Flatten())
        names = list(network.state_dict())
        fuse_relu_and_pooling(network)
        assert isinstance(network[1][1], ReluPooling)
        assert list(network.state_dict()) == names
    for pooling in (*kept, type("Own", (nn.MaxPool2d,), {})(2)):
        network = nn.Sequential(nn.ReLU(), pooling)
        fuse_relu_and_pooling(network)
        assert network[1] is pooling, pooling
    alone = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    fuse_relu_and_pooling(alone)
    assert type(alone[1]) is nn.MaxPool2d
