"""Compiled loops over mixtures of rows (see `shared_sums`), whose values never leave the cache."""

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
def _mixing(count: int) -> Callable[..., None]:
    """Compile `mix(matrix, rows, factors, places, sums, mixed, column)` for mixtures of `count` shared sums each.

    It writes ORDERED_COLUMNS columns of the mixtures, from `column` on, into `mixed` (K lines). `sums` is scratch,
    SUMS·G lines of so many columns, the first of which is 0.
    """

    def mix(matrix: Any, rows: Any, factors: Any, places: Any, sums: Any, mixed: Any, column: int) -> None:
        for group in range(len(rows) // GROUP):
            add_subsets(matrix, rows, factors, sums, group, column, ORDERED_COLUMNS)
        for k in range(len(places)):
            add_places(sums, places, mixed, k, count, ORDERED_COLUMNS)

    return compiled_loop(mix)


@functools.cache
def mixed_middle_kernel(n: int, first: int, last: int, count: int) -> Callable[..., None]:
    """Compile `kernel(matrix, chosen, rows, factors, places, out, start, stop)` for n mixtures of `count` sums each.

    It writes out[c] = mean of the sorted values first…last of column c of the mixtures at the n places `chosen`.
    """
    mix = _mixing(count)

    def middle(
        matrix: Any, chosen: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int
    ) -> None:
        sums = np.zeros((SUMS // GROUP * len(rows), ORDERED_COLUMNS), dtype=matrix.dtype)
        mixed = np.empty((len(places), ORDERED_COLUMNS), dtype=matrix.dtype)
        for block in range(start, stop, ORDERED_COLUMNS):
            a = min(block, matrix.shape[1] - ORDERED_COLUMNS)
            mix(matrix, rows, factors, places, sums, mixed, a)
            mean_of_middle(mixed, chosen, out[a : a + ORDERED_COLUMNS], 0, ORDERED_COLUMNS, n, first, last)

    return compiled_loop(middle)


@functools.cache
def mixed_nearest_kernel(n: int, dropped: int, count: int) -> Callable[..., None]:
    """As `mixed_middle_kernel`, for the mean of the n − dropped values of a column nearest to their median."""
    mix = _mixing(count)

    def nearest(
        matrix: Any, chosen: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int
    ) -> None:
        sums = np.zeros((SUMS // GROUP * len(rows), ORDERED_COLUMNS), dtype=matrix.dtype)
        mixed = np.empty((len(places), ORDERED_COLUMNS), dtype=matrix.dtype)
        for block in range(start, stop, ORDERED_COLUMNS):
            a = min(block, matrix.shape[1] - ORDERED_COLUMNS)
            mix(matrix, rows, factors, places, sums, mixed, a)
            mean_of_nearest(mixed, chosen, out[a : a + ORDERED_COLUMNS], 0, ORDERED_COLUMNS, n, dropped)

    return compiled_loop(nearest)
