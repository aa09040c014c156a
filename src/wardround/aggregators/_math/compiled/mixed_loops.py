"""Compiled loops over mixtures of rows (see `shared_sums`), whose values never leave the cache.

A kernel may hold numbers of its enclosing function but no other compiled loop: numba knows the code that it has kept
on disk by such values, and a compiled loop is another one in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from wardround.aggregators._math.compiled import ORDERED_COLUMNS, vector_code
from wardround.aggregators._math.shared_sums import GROUP, SUMS
from wardround.compilation import compiled_loop

__all__ = ["mixed_middle_kernel", "mixed_nearest_kernel"]

# Inside compiled code an intrinsic takes one argument less than its definition, the typing context.
add_subsets: Any = vector_code.add_subsets
add_places: Any = vector_code.add_places
mean_of_middle: Any = vector_code.mean_of_middle
mean_of_nearest: Any = vector_code.mean_of_nearest


@functools.cache
def mixed_middle_kernel(n: int, first: int, last: int, count: int) -> Callable[..., None]:
    """Compile `kernel(matrix, chosen, rows, factors, places, out, start, stop)` for n mixtures of `count` sums each.

    It writes out[c] = mean of the sorted values first…last of column c of the mixtures at the n places `chosen`.
    ORDERED_COLUMNS columns are made at a time, of the shared sums (SUMS·G lines, the first is 0) and of all mixtures.
    """

    def middle(
        matrix: Any, chosen: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int
    ) -> None:
        sums = np.zeros((SUMS // GROUP * len(rows), ORDERED_COLUMNS), dtype=matrix.dtype)
        mixed = np.empty((len(places), ORDERED_COLUMNS), dtype=matrix.dtype)
        for block in range(start, stop, ORDERED_COLUMNS):
            a = min(block, matrix.shape[1] - ORDERED_COLUMNS)
            for group in range(len(rows) // GROUP):
                add_subsets(matrix, rows, factors, sums, group, a, ORDERED_COLUMNS)
            for k in range(len(places)):
                add_places(sums, places, mixed, k, count, ORDERED_COLUMNS)
            mean_of_middle(mixed, chosen, out[a : a + ORDERED_COLUMNS], 0, ORDERED_COLUMNS, n, first, last)

    return compiled_loop(middle)


@functools.cache
def mixed_nearest_kernel(n: int, dropped: int, count: int) -> Callable[..., None]:
    """As `mixed_middle_kernel`, for the mean of the n − dropped values of a column nearest to their median."""

    def nearest(
        matrix: Any, chosen: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int
    ) -> None:
        sums = np.zeros((SUMS // GROUP * len(rows), ORDERED_COLUMNS), dtype=matrix.dtype)
        mixed = np.empty((len(places), ORDERED_COLUMNS), dtype=matrix.dtype)
        for block in range(start, stop, ORDERED_COLUMNS):
            a = min(block, matrix.shape[1] - ORDERED_COLUMNS)
            for group in range(len(rows) // GROUP):
                add_subsets(matrix, rows, factors, sums, group, a, ORDERED_COLUMNS)
            for k in range(len(places)):
                add_places(sums, places, mixed, k, count, ORDERED_COLUMNS)
            mean_of_nearest(mixed, chosen, out[a : a + ORDERED_COLUMNS], 0, ORDERED_COLUMNS, n, dropped)

    return compiled_loop(nearest)
