"""The compiled loop over updates that are split by outcome. It releases the GIL and works on a range of columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from wardround.aggregators._math.compiled import TILE, vector_code
from wardround.aggregators._math.compiled.loops import BLOCK, SCRATCH_COLUMNS
from wardround.compilation import compiled_loop

__all__ = ["SCRATCH_COLUMNS", "add_part_products"]

add_tile_products: Any = vector_code.add_tile_products


def _add_part_products(
    matrix: Any, parts: Any, besides: Any, rows: Any, gram: Any, compressed: Any, squares: Any, start: int, stop: int
) -> None:  # fmt: skip
    """Add inner products of parts, of their signed square roots, and squared gaps and norms, of some columns.

    `matrix` is N × D, `parts` (N·C) × D, `besides` N × D or empty: what belongs to no part. `rows` is scratch of a
    multiple of TILE rows, zero at first, and one row more. Tiles of `gram` and `compressed` on and above the diagonal
    are added to, and squares[0, i] += ‖Σ_c parts − matrix‖², squares[1, i] += ‖matrix‖².
    """
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        if b - a < BLOCK:
            rows[:, :] = 0
        load_block(matrix, parts, besides, rows, squares, a, b)
        add_products(rows, gram, parts, b)
        take_roots(rows[: len(parts)], b - a)
        add_products(rows, compressed, matrix, b)


def _load_block(
    matrix: Any, parts: Any, besides: Any, rows: Any, squares: Any, start: int, stop: int
) -> None:
    """Copy some columns of the parts into `rows`, and compare their sums with the updates."""
    outcomes, width, gap = len(parts) // len(matrix), stop - start, rows[len(rows) - 1]
    for i in range(len(matrix)):
        whole = matrix[i, start:stop]
        own, apart = rows.dtype.type(0), rows.dtype.type(0)
        for c in range(width):
            x = whole[c]
            own += x * x
            gap[c] = -x
        if besides.size:
            other = besides[i, start:stop]
            for c in range(width):
                gap[c] += other[c]
        for k in range(outcomes):
            source, target = parts[i * outcomes + k, start:stop], rows[i * outcomes + k]
            for c in range(width):
                target[c] = source[c]
                gap[c] += source[c]
        for c in range(width):
            apart += gap[c] * gap[c]
        squares[0, i] += apart
        squares[1, i] += own


def _take_roots(rows: Any, width: int) -> None:
    """Replace every value by its root, with its sign."""
    for i in range(len(rows)):
        row = rows[i]
        for c in range(width):
            x = row[c]
            root = np.sqrt(abs(x))
            row[c] = -root if x < 0 else root


def _add_products(rows: Any, gram: Any, following: Any, column: int) -> None:
    """Add the products of all pairs of rows, while the matrix `following` is fetched from `column` on."""
    side, last, ahead = len(rows) - 1, max(len(following) - 2, 0), 0
    for i in range(0, side, TILE):
        for j in range(i, side, TILE):
            add_tile_products(rows, i, j, gram, following, ahead, column)
            ahead = min(ahead + 2, last)


load_block = compiled_loop(_load_block, reorder=True)
take_roots = compiled_loop(_take_roots)
add_products = compiled_loop(_add_products)
add_part_products = compiled_loop(_add_part_products)
