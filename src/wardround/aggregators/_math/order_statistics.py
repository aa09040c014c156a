"""Order statistics of every coordinate over the clients: median, trimmed mean, mean nearest the median.

A matrix has N rows (clients) and D columns; results have D values, in its precision. Compiled sorting networks where
they apply; elsewhere torch sorts column chunks, slower and with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from wardround.aggregators._math.columns import column_ranges, for_each_range
from wardround.aggregators._math.compiled import loops_for
from wardround.updates import row_squared_norms

__all__ = ["GAUSSIAN_MAD", "mean_nearest_median", "mean_of_middle", "median", "norms_and_middle"]

GAUSSIAN_MAD = 0.6744897501960817
"""The median absolute deviation of a standard normal (0.6745): MAD / 0.6745 estimates its standard deviation."""
SORTED_COLUMNS = 8_192
"""Columns that the torch path sorts at a time: bounds its temporaries."""


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
        middle = _by_sorting(matrix, lambda ordered: ordered[dropped : n - dropped].mean(0))
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

    def mean(ordered: Tensor) -> Tensor:
        # The nearest values are a window of the sorted ones, moved right past every s whose value lies
        # farther from the median than the one that would come in on the right.
        twice_median = ordered[(n - 1) // 2] + ordered[n // 2]
        moves = (ordered[:dropped] + ordered[width:] < twice_median).sum(0)
        inside = moves + torch.arange(width, device=ordered.device)[:, None]
        return ordered.gather(0, inside).mean(0)

    return _by_sorting(matrix, mean, rows)


def _by_sorting(
    matrix: Tensor, reduce: Callable[[Tensor], Tensor], rows: Sequence[int] | None = None
) -> Tensor:
    """`reduce` of the sorted columns (N × some, float64 → some), for a few columns at a time."""
    out = matrix.new_empty(matrix.shape[1])
    for start in range(0, matrix.shape[1], SORTED_COLUMNS):
        columns = slice(start, start + SORTED_COLUMNS)
        block = matrix[:, columns] if rows is None else matrix[:, columns][list(rows)]
        out[columns] = reduce(block.double().sort(0).values)
    return out
