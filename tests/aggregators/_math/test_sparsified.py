"""Rows of which only the largest magnitudes count, against plain numpy."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wardround.aggregators._math import sparsified
from wardround.aggregators._math.sparsified import kept_statistics, magnitude_limits, pieces_of, sum_kept


def random_matrix(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def limits_by_sorting(matrix, pieces, keep):
    values = np.concatenate([matrix[:, a:b].abs().numpy() for _, a, b in pieces], axis=1)
    return np.sort(values, axis=1)[:, values.shape[1] - keep]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.7, 0.999])
def test_the_line_in_a_large_model(share, dtype, both_paths):
    matrix = random_matrix(3, 150_000, dtype=dtype)
    matrix[1] *= torch.linspace(0, 1, 150_000) ** 3  # layers differ in scale
    matrix[2] = matrix[2].round()  # many ties, and many zeros
    pieces = pieces_of([slice(0, 100_000), slice(100_000, 100_007), slice(110_000, 150_000)])
    keep = int(140_007 * share)
    np.testing.assert_array_equal(
        magnitude_limits(matrix, pieces, keep), limits_by_sorting(matrix, pieces, keep)
    )


def test_a_row_unlike_its_sample(both_paths):
    """Large exactly where nobody looks: the line is outside the bracket, and still found."""
    matrix = torch.full((2, 140_000), 10.0)
    matrix[0] = random_matrix(1, 140_000)[0]
    pieces = pieces_of([slice(0, 140_000)])
    low, high = sparsified._bracket(torch.arange(140_000.0)[None], pieces, 0.5)
    assert low < 70_000 < high
    hidden = torch.ones(140_000, dtype=torch.bool)
    places = torch.cat([torch.arange(a, b - 15, 16) for _, a, b in pieces])
    seen = places[torch.linspace(0, len(places) - 1, sparsified.PLACES).long()]
    hidden[(seen[:, None] + torch.arange(16)).flatten()] = False
    matrix[1, hidden] = random_matrix(1, int(hidden.sum()), seed=1)[0]
    np.testing.assert_array_equal(
        magnitude_limits(matrix, pieces, 70_000), limits_by_sorting(matrix, pieces, 70_000)
    )


@given(
    n=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    piece=st.integers(3, 70),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_statistics_and_sums_of_every_shape(n, sizes, seed, piece, both_paths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparsified, "RANGE", piece)
        ends = np.cumsum(sizes).tolist()
        tensors = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        pieces = pieces_of(tensors)
    matrix = random_matrix(n, ends[-1], seed)
    matrix[:, ::5] = 0
    limits = random_matrix(len(sizes), n, seed + 1).abs()
    weights = random_matrix(len(sizes), n, seed + 2, torch.float64)
    weights[0, 0] = 0
    squared, plus, minus = kept_statistics(matrix, pieces, limits)
    delta = sum_kept(matrix, pieces, limits, weights)
    for t, columns in enumerate(tensors):
        part = matrix[:, columns].double()
        kept = torch.where(part.abs() >= limits[t].double()[:, None], part, 0.0)
        torch.testing.assert_close(squared[t], kept.square().sum(1))
        assert plus[t].tolist() == (kept > 0).sum(1).tolist()
        assert minus[t].tolist() == (kept < 0).sum(1).tolist()
        torch.testing.assert_close(delta[columns].double(), weights[t] @ kept, rtol=1e-5, atol=1e-5)


def test_a_tiny_weight_brings_a_huge_row_down_to_size(both_paths):
    matrix = torch.full((2, 40), 1e35)
    weights = torch.tensor([[1e-39, 0.0]], dtype=torch.float64)
    out = sum_kept(matrix, pieces_of([slice(0, 40)]), torch.zeros(1, 2), weights)
    torch.testing.assert_close(out, torch.full((40,), 1e-4))


def test_nothing_and_everything_kept():
    matrix, pieces = random_matrix(2, 30), pieces_of([slice(0, 30)])
    assert magnitude_limits(matrix, pieces, 30).tolist() == [0, 0]
    assert magnitude_limits(matrix, pieces, 0).tolist() == [torch.inf, torch.inf]
