"""The sparse projection: by hand, on average, and the same to the last bit with and without compiled loops."""

import pytest
import torch

from wardround.aggregators._math import projection
from wardround.aggregators._math.compiled import loops_for
from wardround.aggregators._math.projection import Projection

SIZE = 70_000  # three ranges of columns


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(projection, "loops_for", lambda matrix: None)
    elif loops_for(torch.ones(1, 100)) is None:
        pytest.skip("no compiled loops: numba is not installed (pip install 'wardround[fast]')")
    return request.param


def test_each_coordinate_goes_with_one_sign_into_one_sum(way):
    short = Projection(SIZE, 64, seed=3)
    ones = torch.eye(3, SIZE)
    ones[2, 2], ones[2, SIZE - 1] = 0, 5
    images = short.apply(ones)
    assert images.count_nonzero(1).tolist() == [1, 1, 1]
    assert images.abs().sum(1).tolist() == [1, 1, 5]


def test_products_are_kept_on_average(way):
    x, y = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0)).double()
    y += x
    found = [torch.dot(*Projection(2000, 256, seed=seed).apply(torch.stack([x, y]))) for seed in range(200)]
    mean, error = torch.stack(found).mean(), torch.stack(found).std() / len(found) ** 0.5
    assert abs(mean - x @ y) < 4 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_agree_to_the_last_bit(dtype, monkeypatch):
    rows = torch.randn(7, SIZE + 5, generator=torch.Generator().manual_seed(1), dtype=dtype)[:, 5:]
    short = Projection(SIZE, 512, seed=0)
    assert loops_for(rows) is None, "rows of a wider matrix: the loops must take them all the same"
    fast = short.apply(rows)
    monkeypatch.setattr(projection, "loops_for", lambda matrix: None)
    assert torch.equal(fast, short.apply(rows))
