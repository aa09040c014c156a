"""Mixtures of rows: their values, and order statistics of them that never have all values at once."""

import numpy as np
import pytest
import torch

from wardround.aggregators._math import mixing
from wardround.aggregators._math.mixing import (
    for_each_mixed_block,
    mix_rows,
    mixed_middle,
    mixed_nearest_median,
)
from wardround.aggregators._math.order_statistics import mean_nearest_median, mean_of_middle
from wardround.aggregators._math.shared_sums import shared_sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("made", "n"), [(1, 3), (4, 4), (7, 20), (10, 5), (150, 150)])
@pytest.mark.parametrize("d", [5, 127, 128, 1000])
def test_mixtures_are_the_matrix_product(made, n, d, dtype, both_paths, monkeypatch):
    monkeypatch.setattr(mixing, "MIXED_VALUES", 300 * made)  # several blocks, the last of which is short
    generator = torch.Generator().manual_seed(made * d)
    matrix = torch.randn(n, d, generator=generator).to(dtype)
    coefficients = torch.randn(made, n, generator=generator).double() / n**0.5
    expected = coefficients.numpy() @ matrix.double().numpy()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(mix_rows(matrix, coefficients), expected, atol=tolerance)
    seen = np.zeros(d, dtype=bool)
    for_each_mixed_block(
        matrix,
        coefficients,
        lambda start, mixed: seen.__setitem__(slice(start, start + mixed.shape[1]), True),
    )
    assert seen.all()


def test_a_tiny_coefficient_is_not_lost(both_paths):
    mixed = mix_rows(torch.full((2, 200), 1e35), torch.tensor([[1e-39, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(mixed, torch.full((1, 200), 1e-4))


def nearest_neighbours(n, near, generator):
    """N mixtures of `near` rows each."""
    chosen = torch.rand(n, n, generator=generator).argsort(1)[:, :near]
    return torch.zeros(n, n, dtype=torch.float64).scatter_(1, chosen, 1 / near)


def buckets(n, size, generator):
    """⌈N/size⌉ mixtures of rows that no other has."""
    bucket = torch.randperm(n, generator=generator) // size
    mixing = torch.nn.functional.one_hot(bucket).T.double()
    return mixing / mixing.sum(1, keepdim=True)


MIXTURES = {
    "neighbours": lambda generator: nearest_neighbours(20, 16, generator),
    "neighbours of clipped rows": lambda generator: (
        nearest_neighbours(11, 8, generator) * torch.rand(11, generator=generator)
    ),
    "few neighbours": lambda generator: nearest_neighbours(7, 6, generator),  # fewer: sums tie
    "pairs": lambda generator: buckets(21, 2, generator),
    "few pairs": lambda generator: buckets(9, 2, generator),
    "threes": lambda generator: buckets(20, 3, generator),
    "one row": lambda generator: torch.ones(1, 1, dtype=torch.float64),
    "nothing shared": lambda generator: torch.rand(9, 12, generator=generator).double(),
}


FAST = [("few neighbours", torch.float32), ("few pairs", torch.float32), ("one row", torch.float32)]
"""Every shape of mixture is compiled for itself, and the longer the more rows it has: the others are slow."""


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(kind, dtype, marks=() if (kind, dtype) in FAST else pytest.mark.slow)
        for kind in MIXTURES
        for dtype in (torch.float32, torch.float64)
    ],
)
@pytest.mark.parametrize("d", [7, 32, 1001, 40_000])
def test_mixing_and_ordering_in_one_go_is_ordering_all_mixtures(kind, d, dtype, both_paths):
    """The kernels that never have the mixtures give what the order statistics make of all of them."""
    generator = torch.Generator().manual_seed(d)
    coefficients = MIXTURES[kind](generator)
    matrix = torch.randn(coefficients.shape[1], d, generator=generator, dtype=torch.float64).to(dtype)
    mixed = mix_rows(matrix, coefficients)
    n, close = len(mixed), {"rtol": 0, "atol": 2e-6 if dtype == torch.float32 else 4e-15}
    for dropped in {0, n // 5, (n - 1) // 2}:
        torch.testing.assert_close(
            mixed_middle(matrix, coefficients, dropped), mean_of_middle(mixed, dropped), **close
        )
        torch.testing.assert_close(
            mixed_nearest_median(matrix, coefficients, dropped), mean_nearest_median(mixed, dropped), **close
        )
    some = list(range(0, n, 2))
    torch.testing.assert_close(
        mixed_nearest_median(matrix, coefficients, len(some) // 3, some),
        mean_nearest_median(mixed, len(some) // 3, some),
        **close,
    )


def test_a_row_that_a_mixture_leaves_out_has_no_part_in_its_rounding(both_paths):
    """However long it is, and even where the sum of all rows would not fit float32."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(12, 100, generator=generator)
    coefficients = torch.full((12, 12), 1 / 9, dtype=torch.float64)
    coefficients[:, :3] = 0
    expected = matrix[3:].double().mean(0).float()
    matrix[:3] = 3e38
    torch.testing.assert_close(mixed_middle(matrix, coefficients, 2), expected)


def test_rows_with_several_coefficients_share_no_sums():
    assert shared_sums(torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)) is None
    assert shared_sums(torch.tensor([[0.5, 0.5], [0.0, 0.5]], dtype=torch.float64)) is not None
    assert shared_sums(torch.tensor([[-0.5, 0.5]], dtype=torch.float64)) is None
