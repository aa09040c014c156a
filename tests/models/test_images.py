"""Parts of the networks for images."""

import pytest
import torch
from torch.nn import functional

from wardround import models
from wardround.models.images import HalvingMaxPool


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 6, 7, 9), (4, 1, 2, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_quick_pooling_is_torchs_to_the_bit(shape, layout, kind):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).relu().to(kind)
    values = values.contiguous(memory_format=layout)
    values[0, 0, 0, 1] = float("nan")
    pooled = functional.max_pool2d(values, 2)
    with torch.no_grad():
        quick = HalvingMaxPool()(values)
    assert torch.equal(quick.nan_to_num(7.0), pooled.nan_to_num(7.0))
    assert bool(quick[0, 0, 0, 0].isnan())


def test_gradients_go_where_torchs_pooling_sends_them():
    values = torch.ones(1, 1, 4, 4, requires_grad=True)  # four equal values: torch takes the first
    HalvingMaxPool()(values).sum().backward()
    expected = torch.zeros(1, 1, 4, 4)
    expected[..., ::2, ::2] = 1
    assert torch.equal(values.grad, expected)


@pytest.mark.parametrize("name", ["dos-cnn", "medical-cnn"])
def test_without_gradients_the_slow_pooling_is_not_called(name, monkeypatch):
    model = models.create(name).build((3, 32, 32), 2).eval()
    samples = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    expected = model(samples)  # with gradients

    def refuse(*arguments, **options):
        raise AssertionError("the slow pooling was called")

    monkeypatch.setattr(functional, "max_pool2d", refuse)
    with torch.no_grad():
        assert torch.allclose(model(samples), expected, atol=1e-6)
    with pytest.raises(AssertionError, match="slow pooling"):
        model(samples)
