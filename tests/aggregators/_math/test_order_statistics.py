import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wardround.aggregators._math import compiled
from wardround.aggregators._math.order_statistics import (
    FEW_ROWS,
    mean_nearest_median,
    mean_of_middle,
    median,
    norms_and_middle,
)

VALUES = st.floats(-1e6, 1e6, width=32)


def nearest_by_definition(matrix, dropped):
    """The n − dropped values with the least distance to the median, one coordinate at a time."""
    matrix = matrix.astype(np.float64)
    distances = np.abs(matrix - np.median(matrix, axis=0))
    nearest = np.argsort(distances, axis=0, kind="stable")[: len(matrix) - dropped]
    return np.take_along_axis(matrix, nearest, axis=0).mean(axis=0)


@settings(max_examples=30, deadline=None)
@given(arrays("float32", (7, 16), elements=VALUES))
def test_median_is_numpys(matrix):
    expected = np.median(matrix.astype(np.float64), axis=0)
    np.testing.assert_allclose(median(torch.from_numpy(matrix)), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 21])
@pytest.mark.parametrize("d", [1, 15, 16, 17, 40_001])
def test_all_shapes(n, d, dtype, both_paths):
    matrix = np.random.default_rng(n * d).standard_normal((n, d)).astype(dtype)
    tensor = torch.from_numpy(matrix)
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(median(tensor), np.median(matrix, axis=0), rtol=tolerance, atol=tolerance)
    for dropped in {0, (n - 1) // 3, (n - 1) // 2}:
        rest = np.sort(matrix.astype(np.float64), axis=0)[dropped : n - dropped]
        np.testing.assert_allclose(
            mean_of_middle(tensor, dropped), rest.mean(axis=0), rtol=tolerance, atol=tolerance
        )
    for dropped in {0, 2 * (n // 6), 2 * ((n - 1) // 2)}:  # even, as in Bulyan: else the middle two tie
        np.testing.assert_allclose(
            mean_nearest_median(tensor, dropped),
            nearest_by_definition(matrix, dropped),
            rtol=tolerance,
            atol=tolerance,
        )


def test_chosen_rows_only(both_paths):
    matrix = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    rows = [7, 0, 3, 4, 8]
    expected = nearest_by_definition(matrix[rows].numpy(), 2)
    np.testing.assert_allclose(mean_nearest_median(matrix, 2, rows), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [FEW_ROWS, FEW_ROWS + 1, compiled.MOST_WIRES, compiled.MOST_WIRES + 1, 300])
def test_around_the_numbers_of_rows_where_the_way_changes(n, dtype, both_paths):
    """Columns in whole blocks, a block that is moved back to end with the matrix, and fewer than a block."""
    for d in (40, 64, 150):
        matrix = np.random.default_rng(n * d).standard_normal((n, d)).astype(dtype)
        tensor, tolerance = torch.from_numpy(matrix), 1e-6 if dtype == "float32" else 1e-14
        ordered = np.sort(matrix.astype(np.float64), axis=0)
        for dropped in (0, n // 5, (n - 1) // 2):
            squared, middle = norms_and_middle(tensor, dropped)
            np.testing.assert_allclose(middle, ordered[dropped : n - dropped].mean(0), atol=tolerance)
            np.testing.assert_allclose(squared, (matrix.astype(np.float64) ** 2).sum(1), rtol=1e-6)
        expected = nearest_by_definition(matrix[1:], 2 * (n // 6))
        found = mean_nearest_median(tensor, 2 * (n // 6), range(1, n))
        np.testing.assert_allclose(found, expected, atol=tolerance)


def test_values_at_the_edge_of_the_format_do_not_overflow(both_paths):
    largest = torch.finfo(torch.float32).max
    matrix = torch.full((4, 32), largest)
    assert torch.equal(median(matrix), matrix[0])
    assert torch.equal(mean_of_middle(matrix, 0), matrix[0])


def test_huge_values_outside_the_window_leave_no_trace(both_paths):
    """Taking them in and out of a running sum would drown the small ones."""
    matrix = torch.full((5, 32), 1e-3)
    matrix[3], matrix[4] = 1e30, -1e30
    assert torch.equal(mean_nearest_median(matrix, 2), matrix[0])


@pytest.mark.parametrize(("function", "dropped"), [(mean_of_middle, 2), (mean_nearest_median, 4)])
def test_dropping_everything_is_refused(function, dropped):
    with pytest.raises(ValueError, match="leaves nothing of 4"):
        function(torch.zeros(4, 20), dropped)
