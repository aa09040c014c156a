"""Order statistics of every coordinate over the clients: median, trimmed mean, mean nearest the median.

A matrix has N rows (clients) and D columns; results have D values, in its precision. Compiled sorting networks where
they apply; elsewhere numpy sorts blocks of columns (torch on other devices), slower and with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wardround.aggregators._math.columns import column_ranges, for_each_range
from wardround.aggregators._math.compiled import loops_for
from wardround.aggregators._math.sorting_networks import selecting, sorting_network
from wardround.updates import row_squared_norms

__all__ = ["GAUSSIAN_MAD", "mean_nearest_median", "mean_of_middle", "median", "norms_and_middle"]

GAUSSIAN_MAD = 0.6744897501960817
"""The median absolute deviation of a standard normal (0.6745): MAD / 0.6745 estimates its standard deviation."""
FEW_ROWS = 64
"""Up to so many rows numpy is faster at comparing whole rows along a network than at sorting each column."""
NETWORK_VALUES, SORTED_VALUES = 2**18, 2**20
"""Values that are ordered at a time by a network, and by sorting: both stay in the cache."""

Columns = NDArray[Any]
"""N × some values of a block of columns."""


def median(matrix: Tensor) -> Tensor:
    """Compute the median of every column; the mean of the two middle values where N is even.

    >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    tensor([3.])
    """
    n = len(matrix)
    return mean_of_middle(matrix, (n - 1) // 2)


def mean_of_middle(matrix: Tensor, dropped: int) -> Tensor:
    """Compute the mean of every column without its `dropped` smallest and `dropped` largest values.

    >>> mean_of_middle(torch.tensor([[1.0], [900.0], [2.0], [4.0], [-70.0]]), 1)
    tensor([2.3333])
    """
    return norms_and_middle(matrix, dropped)[1]


def norms_and_middle(matrix: Tensor, dropped: int) -> tuple[Tensor, Tensor]:
    """Compute the rows' squared norms and `mean_of_middle` in one read of the matrix.

    Args:
        matrix: N × D rows, which need not be finite.
        dropped: Values to leave out at each end of a column.

    Returns:
        N squared norms in float64, and D means, which are sound if the norms are finite.
    """
    n, d = matrix.shape
    if not 0 <= 2 * dropped < n:
        raise ValueError(f"dropping {dropped} values at each end leaves nothing of {n}")
    loops = loops_for(matrix)
    if loops is None:
        wanted = range(dropped, n - dropped)
        middle = _by_sorting(matrix, range(n), wanted, lambda ordered: _mean(ordered[dropped : n - dropped]))
        return row_squared_norms(matrix).cpu(), middle
    kernel = loops.middle_kernel(n, dropped, n - 1 - dropped)
    middle, norms = matrix.new_empty(d), torch.zeros(len(column_ranges(d)), n, dtype=torch.float64)
    arrays, parts = (matrix.numpy(), np.arange(n), middle.numpy()), norms.numpy()
    for_each_range(d, lambda part, a, b: kernel(*arrays, parts[part], a, b))
    return norms.sum(0), middle


def mean_nearest_median(matrix: Tensor, dropped: int, rows: Sequence[int] | None = None) -> Tensor:
    """Compute the mean of every column's values nearest to its median, the `dropped` farthest left out.

    Args:
        matrix: N × D rows.
        dropped: Values to leave out of each column.
        rows: Places of the rows that count; None: all.

    Returns:
        D values.

    >>> mean_nearest_median(torch.tensor([[1.0], [2.0], [3.0], [3.5], [90.0]]), 2)
    tensor([2.8333])
    """
    n = len(matrix) if rows is None else len(rows)
    if not 0 <= dropped < n:
        raise ValueError(f"dropping {dropped} values leaves nothing of {n}")
    loops = loops_for(matrix)
    if loops is not None:
        kernel, out = loops.nearest_kernel(n, dropped), matrix.new_empty(matrix.shape[1])
        indices = np.asarray(range(len(matrix)) if rows is None else rows, dtype=np.int64)
        arrays = matrix.numpy(), indices, out.numpy()
        for_each_range(matrix.shape[1], lambda _, a, b: kernel(*arrays, a, b))
        return out
    width = n - dropped

    def mean(ordered: Columns) -> Columns:
        # The nearest values are a window of the sorted ones, moved right past every s whose value lies
        # farther from the median than the one that would come in on the right.
        twice_median = ordered[(n - 1) // 2].astype(np.float64) + ordered[n // 2]
        ends = ordered[:dropped].astype(np.float64) + ordered[width:]
        first = (ends < twice_median).sum(0)
        place = np.arange(n)[:, None]
        inside = (place >= first) & (place < first + width)
        kept: Columns = np.where(inside, ordered, 0).sum(0, dtype=np.float64)
        return kept / width

    return _by_sorting(matrix, range(n) if rows is None else rows, None, mean)


def _mean(values: Columns) -> Columns:
    """The mean over the first dimension, in float64."""
    mean: Columns = values.sum(0, dtype=np.float64) / len(values)
    return mean


def _by_sorting(
    matrix: Tensor, rows: Sequence[int], summed: range | None, reduce: Callable[[Columns], Columns]
) -> Tensor:
    """Reduce the sorted columns of some rows, a block of columns at a time.

    Args:
        matrix: N × D rows.
        rows: Places of the n rows that count.
        summed: The ranks that `reduce` sums up, and may find in any order; None: it needs all in order.
        reduce: n × some sorted values → some values.

    Returns:
        D values.
    """
    n, places = len(rows), np.asarray(rows, dtype=np.int64)
    values, by_network = matrix.detach().cpu().numpy(), n <= FEW_ROWS
    comparators = sorting_network(n) if by_network else []
    if summed is not None:
        comparators = selecting(comparators, summed)
    out = np.empty(matrix.shape[1], dtype=values.dtype)
    width = max(1, (NETWORK_VALUES if by_network else SORTED_VALUES) // n)

    def work(_: int, start: int, stop: int) -> None:
        for a in range(start, stop, width):
            block = values[places, a : min(a + width, stop)]
            out[a : a + block.shape[1]] = reduce(
                _exchanged(block, comparators) if by_network else _sorted(block)
            )

    for_each_range(matrix.shape[1], work)
    return torch.from_numpy(out).to(matrix.device)


def _sorted(block: Columns) -> Columns:
    """n × some values, every column sorted. (numpy sorts what lies side by side.)"""
    columns = np.ascontiguousarray(block.T)
    columns.sort(axis=1)
    return columns.T


def _exchanged(block: Columns, comparators: list[tuple[int, int]]) -> Columns:
    """n × some values, every column ordered along a network; overwrites the block."""
    rows, spare = list(block), np.empty_like(block[0])
    for low, high in comparators:
        np.minimum(rows[low], rows[high], out=spare)
        np.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return np.stack(rows)
