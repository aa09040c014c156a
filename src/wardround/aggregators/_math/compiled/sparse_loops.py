"""Compiled loops over rows of which only the values of a least magnitude count.

Arguments are as in `loops`: `matrix` is N × D, and columns start ≤ c < stop are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wardround.aggregators._math.compiled.loops import RUN, compiled_loop

__all__ = ["add_kept_statistics", "collect_near", "sum_kept"]


def _collect_near(matrix: Any, low: Any, high: Any, below: Any, near: Any, start: int, stop: int) -> Any:
    """below[i] += how many magnitudes are under low[i]; those from low[i] to high[i] are put into near[i].

    `low`, `high` and `below` have N entries, `near` is N × (stop − start). Returns how many are put into each row of
    `near` (N). Every value is written and only counted if it belongs: no branch to guess wrong.
    """
    n = matrix.shape[0]
    collected = np.zeros(n, dtype=np.int64)
    for i in range(n):
        row, kept = matrix[i, start:stop], near[i]
        least, most = low[i], high[i]
        under, count = np.int64(0), np.int64(0)
        for c in range(stop - start):
            size = abs(row[c])
            kept[count] = size
            count += np.int64(size >= least) & np.int64(size <= most)
            under += np.int64(size < least)
        below[i] += under
        collected[i] = count
    return collected


def _add_kept_statistics(
    matrix: Any, limits: Any, squared: Any, plus: Any, minus: Any, start: int, stop: int
) -> None:
    """Summarise the values with a magnitude of limits[i] or more.

    squared[i] += their sum of squares, plus[i] += how many are above 0, minus[i] += how many below (N entries each).
    """
    for i in range(matrix.shape[0]):
        row, limit = matrix[i, start:stop], limits[i]
        total, above, under = 0.0, np.float32(0), np.float32(0)  # a piece is too short to count past float32
        for c in range(stop - start):
            x = row[c]
            kept = x if abs(x) >= limit else row.dtype.type(0)
            total += np.float64(kept) * np.float64(kept)
            above += np.float32(1) if kept > 0 else np.float32(0)
            under += np.float32(1) if kept < 0 else np.float32(0)
        squared[i] += total
        plus[i] += above
        minus[i] += under


def _sum_kept(matrix: Any, limits: Any, weights: Any, out: Any, start: int, stop: int) -> None:
    """out[c] = Σ_i weights[i] · matrix[i, c], over values with a magnitude of limits[i] or more.

    `limits` and `weights` have N entries, `out` has D.
    """
    total = np.empty(RUN, dtype=weights.dtype)
    for a in range(start, stop, RUN):
        b = min(a + RUN, stop)
        part = total[: b - a]
        part[:] = 0
        for i in range(matrix.shape[0]):
            weight, limit, row = weights[i], limits[i], matrix[i, a:b]
            if weight != 0:
                for c in range(b - a):
                    part[c] += weight * row[c] if abs(row[c]) >= limit else weights.dtype.type(0)
        out[a:b] = part


collect_near = compiled_loop(_collect_near)
add_kept_statistics = compiled_loop(_add_kept_statistics, reorder=True)
sum_kept = compiled_loop(_sum_kept)
