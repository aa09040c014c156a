"""Order statistics of every coordinate over the clients: median, trimmed mean, mean nearest the median.

Compiled sorting networks where they apply; elsewhere torch sorts column chunks, slower and alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from wardround.aggregators.columns import for_each_range
from wardround.aggregators.compiled import loops_for

__all__ = ["GAUSSIAN_MAD", "mean_nearest_median", "mean_of_middle", "median"]

GAUSSIAN_MAD = 0.6744897501960817
"""The median absolute deviation of a standard normal (0.6745): MAD / 0.6745 estimates its standard deviation."""
SORTED_COLUMNS = 8_192
"""Columns that the torch path sorts at a time: bounds its temporaries."""


def median(matrix: Tensor) -> Tensor:
    """Coordinate-wise median over the rows; the mean of the two middle values where their count is even.

    >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    tensor([3.])
    """
    n = len(matrix)
    return mean_of_middle(matrix, (n - 1) // 2)


def mean_of_middle(matrix: Tensor, dropped: int) -> Tensor:
    """Per coordinate the mean without the `dropped` smallest and the `dropped` largest values.

    >>> mean_of_middle(torch.tensor([[1.0], [900.0], [2.0], [4.0], [-70.0]]), 1)
    tensor([2.3333])
    """
    n = len(matrix)
    if not 0 <= 2 * dropped < n:
        raise ValueError(f"dropping {dropped} values at each end leaves nothing of {n}")
    loops = loops_for(matrix)
    if loops is not None:
        return _by_columns(matrix, loops.middle_kernel(n, dropped, n - 1 - dropped))
    return _by_sorting(matrix, lambda ordered: ordered[dropped : n - dropped].mean(0))


def mean_nearest_median(matrix: Tensor, dropped: int, rows: Sequence[int] | None = None) -> Tensor:
    """Per coordinate the mean of the values nearest to the median, the `dropped` farthest left out.

    With `rows`, of these rows only.

    >>> mean_nearest_median(torch.tensor([[1.0], [2.0], [3.0], [3.5], [90.0]]), 2)
    tensor([2.8333])
    """
    n = len(matrix) if rows is None else len(rows)
    if not 0 <= dropped < n:
        raise ValueError(f"dropping {dropped} values leaves nothing of {n}")
    loops = loops_for(matrix)
    if loops is not None:
        return _by_columns(matrix, loops.nearest_kernel(n, dropped), rows)
    width = n - dropped

    def mean(ordered: Tensor) -> Tensor:
        # The nearest values are a window of the sorted ones, moved right past every s whose value lies
        # farther from the median than the one that would come in on the right.
        twice_median = ordered[(n - 1) // 2] + ordered[n // 2]
        moves = (ordered[:dropped] + ordered[width:] < twice_median).sum(0)
        inside = moves + torch.arange(width, device=ordered.device)[:, None]
        return ordered.gather(0, inside).mean(0)

    return _by_sorting(matrix, mean, rows)


def _by_columns(matrix: Tensor, kernel: Callable[..., None], rows: Sequence[int] | None = None) -> Tensor:
    out = matrix.new_empty(matrix.shape[1])
    indices = np.asarray(range(len(matrix)) if rows is None else rows, dtype=np.int64)
    values, result = matrix.numpy(), out.numpy()
    for_each_range(matrix.shape[1], lambda _, a, b: kernel(values, indices, result, a, b))
    return out


def _by_sorting(
    matrix: Tensor, reduce: Callable[[Tensor], Tensor], rows: Sequence[int] | None = None
) -> Tensor:
    out = matrix.new_empty(matrix.shape[1])
    for start in range(0, matrix.shape[1], SORTED_COLUMNS):
        columns = slice(start, start + SORTED_COLUMNS)
        block = matrix[:, columns] if rows is None else matrix[:, columns][list(rows)]
        out[columns] = reduce(block.double().sort(0).values)
    return out
