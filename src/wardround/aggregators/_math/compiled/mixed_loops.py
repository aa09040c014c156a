"""Compiled loops over mixtures of rows (see `shared_sums`), whose values never leave the cache.

Their kernels are called as `kernel(matrix, rows, factors, places, out, start, stop)`, with the rows, factors and places
of `SharedSums`; behind the factors stands a 1.

A kernel may hold numbers of its enclosing function but no other compiled loop: numba knows the code that it has kept
on disk by such values, and a compiled loop is another one in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from wardround.aggregators._math.compiled import mixed_vector_code
from wardround.aggregators._math.compiled.vector_code import REGISTER_BYTES
from wardround.aggregators._math.shared_sums import SUMS
from wardround.compilation import compiled_loop

__all__ = ["mixed_middle_kernel", "mixed_nearest_kernel"]

# Inside compiled code an intrinsic takes one argument less than its definition, the typing context.
mixed_middle: Any = mixed_vector_code.mixed_middle
mixed_nearest: Any = mixed_vector_code.mixed_nearest


@functools.cache
def mixed_middle_kernel(n: int, groups: int, count: int, first: int, last: int) -> Callable[..., None]:
    """Compile a kernel for n mixtures of `count` sums each, of rows in so many groups.

    It writes out[c] = mean of the sorted values first…last of column c of the mixtures.
    """

    def middle(matrix: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int) -> None:
        lanes = REGISTER_BYTES // matrix.itemsize
        lines, sums = places * lanes, np.zeros(SUMS * groups * lanes, dtype=matrix.dtype)
        mixed = np.zeros(n * lanes, dtype=matrix.dtype)
        mixed_middle(
            matrix, rows, factors, lines, sums, mixed, out, start, stop, n, groups, count, first, last
        )

    return compiled_loop(middle)


@functools.cache
def mixed_nearest_kernel(n: int, groups: int, count: int, dropped: int) -> Callable[..., None]:
    """As `mixed_middle_kernel`, for the mean of the n − dropped values of a column nearest to their median."""

    def nearest(matrix: Any, rows: Any, factors: Any, places: Any, out: Any, start: int, stop: int) -> None:
        lanes = REGISTER_BYTES // matrix.itemsize
        lines, sums = places * lanes, np.zeros(SUMS * groups * lanes, dtype=matrix.dtype)
        mixed = np.zeros(n * lanes, dtype=matrix.dtype)
        mixed_nearest(matrix, rows, factors, lines, sums, mixed, out, start, stop, n, groups, count, dropped)

    return compiled_loop(nearest)
