"""The compiled loops. All release the GIL and work on a range of columns, so that threads can share them.

Compilation is cached on disk beside this file or, where that folder is read-only, in the user's cache;
where neither can be written, for the life of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from wardround.aggregators.compiled import TILE, vector_code

__all__ = [
    "BLOCK",
    "SCRATCH_COLUMNS",
    "add_gram",
    "add_pair_distances",
    "add_projections",
    "add_row_dots",
    "add_squared_norms",
    "middle_kernel",
    "nearest_kernel",
    "sum_rows",
]

BLOCK = 1024
"""Columns that are worked on at a time: a block of all rows stays in the second-level cache."""
SCRATCH_COLUMNS = BLOCK + 16
"""A block's columns and a register of zeros, so that equal columns of the rows fall into different cache sets."""

# Inside compiled code an intrinsic takes one argument less than its definition, the typing context.
mean_of_middle: Any = vector_code.mean_of_middle
mean_of_nearest: Any = vector_code.mean_of_nearest
add_tile_products: Any = vector_code.add_tile_products

Loop = TypeVar("Loop", bound=Callable[..., Any])


def _compiled(function: Loop, reorder: bool = False) -> Loop:
    # `reassoc` lets a sum run in several lanes; the order is fixed at compile time, so results repeat.
    fast = {"contract", "reassoc"} if reorder else False
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fast}
    compiler: Any = njit
    loop: Loop
    try:
        loop = compiler(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write its cache to
        loop = compiler(**options)(function)
    return loop


@functools.cache
def middle_kernel(n: int, first: int, last: int) -> Callable[..., None]:
    """`kernel(matrix, rows, out, start, stop)`: the mean of the sorted values first…last of each column."""

    def middle(matrix: Any, rows: Any, out: Any, start: int, stop: int) -> None:
        mean_of_middle(matrix, rows, out, start, stop, n, first, last)

    return _compiled(middle)


@functools.cache
def nearest_kernel(n: int, dropped: int) -> Callable[..., None]:
    """`kernel(matrix, rows, out, start, stop)`: the mean of the n − dropped values nearest to the median."""

    def nearest(matrix: Any, rows: Any, out: Any, start: int, stop: int) -> None:
        mean_of_nearest(matrix, rows, out, start, stop, n, dropped)

    return _compiled(nearest)


def _sum_rows(matrix: Any, weights: Any, out: Any, start: int, stop: int) -> None:
    """out = Σ_i weights[i] · matrix[i], four rows a pass over a block that stays in the cache."""
    n = matrix.shape[0]
    total = np.empty(BLOCK, dtype=weights.dtype)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        width = b - a
        part = total[:width]
        part[:] = 0
        i = 0
        while i + 4 <= n:
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            r0, r1, r2, r3 = matrix[i, a:b], matrix[i + 1, a:b], matrix[i + 2, a:b], matrix[i + 3, a:b]
            for c in range(width):
                part[c] += (w0 * r0[c] + w1 * r1[c]) + (w2 * r2[c] + w3 * r3[c])
            i += 4
        while i < n:
            w0, r0 = weights[i], matrix[i, a:b]
            for c in range(width):
                part[c] += w0 * r0[c]
            i += 1
        row = out[a:b]
        for c in range(width):
            row[c] = part[c]


def _add_squared_norms(matrix: Any, totals: Any, start: int, stop: int) -> None:
    """totals[i] += ‖matrix[i]‖², wholly in float64.

    The memory is slower than the arithmetic, and four rows at a time keep it busier than one.
    """
    n = matrix.shape[0]
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        i = 0
        while i + 4 <= n:
            r0, r1, r2, r3 = matrix[i, a:b], matrix[i + 1, a:b], matrix[i + 2, a:b], matrix[i + 3, a:b]
            t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
            for c in range(b - a):
                x0, x1, x2, x3 = np.float64(r0[c]), np.float64(r1[c]), np.float64(r2[c]), np.float64(r3[c])
                t0 += x0 * x0
                t1 += x1 * x1
                t2 += x2 * x2
                t3 += x3 * x3
            totals[i] += t0
            totals[i + 1] += t1
            totals[i + 2] += t2
            totals[i + 3] += t3
            i += 4
        while i < n:
            r0 = matrix[i, a:b]
            t0 = 0.0
            for c in range(b - a):
                x0 = np.float64(r0[c])
                t0 += x0 * x0
            totals[i] += t0
            i += 1


def _add_row_dots(matrix: Any, vector: Any, totals: Any, start: int, stop: int) -> None:
    """totals[i] += ⟨matrix[i], vector⟩ in float64."""
    n = matrix.shape[0]
    v = np.empty(BLOCK)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        v[: b - a] = vector[a:b]
        i = 0
        while i + 4 <= n:
            r0, r1, r2, r3 = matrix[i, a:b], matrix[i + 1, a:b], matrix[i + 2, a:b], matrix[i + 3, a:b]
            t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
            for c in range(b - a):
                t0 += np.float64(r0[c]) * v[c]
                t1 += np.float64(r1[c]) * v[c]
                t2 += np.float64(r2[c]) * v[c]
                t3 += np.float64(r3[c]) * v[c]
            totals[i] += t0
            totals[i + 1] += t1
            totals[i + 2] += t2
            totals[i + 3] += t3
            i += 4
        while i < n:
            r0 = matrix[i, a:b]
            t0 = 0.0
            for c in range(b - a):
                t0 += np.float64(r0[c]) * v[c]
            totals[i] += t0
            i += 1


def _add_projections(matrix: Any, centre: Any, anchor: Any, totals: Any, start: int, stop: int) -> None:
    """totals[i] += ⟨matrix[i] − centre, anchor + centre⟩ and, in the last place, ‖anchor + centre‖²."""
    n = matrix.shape[0]
    base, origin = np.empty(BLOCK), np.empty(BLOCK)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        squared = 0.0
        for c in range(b - a):
            origin[c] = centre[a + c]
            base[c] = np.float64(anchor[a + c]) + origin[c]
            squared += base[c] * base[c]
        totals[n] += squared
        for i in range(n):
            row = matrix[i, a:b]
            total = 0.0
            for c in range(b - a):
                total += (np.float64(row[c]) - origin[c]) * base[c]
            totals[i] += total


def _add_gram(matrix: Any, centre: Any, rows: Any, gram: Any, start: int, stop: int) -> None:
    """gram += (matrix − centre)(matrix − centre)ᵀ, upper triangle of tiles, in the precision of `rows`.

    `rows` is scratch space of SCRATCH_COLUMNS and a multiple of TILE rows, zero where the matrix has none.
    """
    n = matrix.shape[0]
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        width = b - a
        if width < BLOCK:
            rows[:, :] = 0
        origin = centre[a:b]
        for i in range(n):
            source, target = matrix[i, a:b], rows[i]
            for c in range(width):
                target[c] = rows.dtype.type(source[c]) - rows.dtype.type(origin[c])
        for i in range(0, rows.shape[0], TILE):
            for j in range(i, rows.shape[0], TILE):
                add_tile_products(rows, i, j, gram)


def _add_pair_distances(matrix: Any, pairs: Any, totals: Any, start: int, stop: int) -> None:
    """totals[k] += ‖matrix[i] − matrix[j]‖² for the k-th pair (i, j), wholly in float64."""
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        for k in range(pairs.shape[0]):
            x, y = matrix[pairs[k, 0], a:b], matrix[pairs[k, 1], a:b]
            total = 0.0
            for c in range(b - a):
                difference = np.float64(x[c]) - np.float64(y[c])
                total += difference * difference
            totals[k] += total


sum_rows = _compiled(_sum_rows)
add_squared_norms = _compiled(_add_squared_norms, reorder=True)
add_row_dots = _compiled(_add_row_dots, reorder=True)
add_projections = _compiled(_add_projections, reorder=True)
add_gram = _compiled(_add_gram)
add_pair_distances = _compiled(_add_pair_distances, reorder=True)
