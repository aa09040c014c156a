"""The compiled loop over updates that are split by outcome. It releases the GIL and works on a range of columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from wardround.aggregators._math.compiled import TILE, vector_code
from wardround.aggregators._math.compiled.loops import PADDING, scratch_columns
from wardround.compilation import compiled_loop

__all__ = ["add_part_products", "scratch_columns"]

add_tile_products: Any = vector_code.add_tile_products


def _add_part_products(
    matrix: Any, parts: Any, besides: Any, rows: Any, gram: Any, compressed: Any, squares: Any, start: int, stop: int
) -> None:  # fmt: skip
    """Add inner products of parts, of their signed square roots, and squared gaps and norms, of some columns.

    `matrix` is N × D, `parts` (N·C) × D, client by client; `besides` N × D or empty: what belongs to no part. `rows` is
    scratch of a multiple of TILE rows, zero at first, and one row more; it and the products are outcome by outcome.
    With two outcomes, tiles of `gram` and `compressed` on and above the diagonal are added to. With any other number
    only tiles of `compressed` that hold a pair of one outcome are. squares[0, i] += ‖Σ_c parts − matrix‖² and
    squares[1, i] += ‖matrix‖² (N each), squares[2:] (C × N) += ‖parts‖².
    """
    n = len(matrix)
    both, block = len(parts) == 2 * n, rows.shape[1] - PADDING
    for a in range(start, stop, block):
        b = min(a + block, stop)
        if b - a < block:
            rows[:, :] = 0
        load_block(matrix, parts, besides, rows, squares, a, b)
        if both:
            add_products(rows, gram, parts, b, 2 * n)
        take_roots(rows[: len(parts)], b - a)
        add_products(rows, compressed, matrix if both else parts, b, 2 * n if both else n)


def _load_block(
    matrix: Any, parts: Any, besides: Any, rows: Any, squares: Any, start: int, stop: int
) -> None:
    """Copy some columns of the parts into `rows`, and compare their sums with the updates."""
    n, width, gap = len(matrix), stop - start, rows[len(rows) - 1]
    outcomes = len(parts) // n
    for i in range(n):
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
            source, target = parts[i * outcomes + k, start:stop], rows[k * n + i]
            length = rows.dtype.type(0)
            for c in range(width):
                x = source[c]
                target[c] = x
                gap[c] += x
                length += x * x
            squares[2 + k, i] += length
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


def _add_products(rows: Any, gram: Any, following: Any, column: int, together: int) -> None:
    """Add the products of pairs of rows among each so many, while `following` is fetched from `column` on."""
    side, last, ahead = len(rows) - 1, max(len(following) - 2, 0), 0
    for i in range(0, side, TILE):
        end = ((i + TILE - 1) // together + 1) * together
        add_tile_products(rows, i, i, gram, following, ahead, column, True)
        ahead = min(ahead + 2, last)
        for j in range(i + TILE, min(end, side), TILE):
            add_tile_products(rows, i, j, gram, following, ahead, column, False)
            ahead = min(ahead + 2, last)


load_block = compiled_loop(_load_block, reorder=True)
take_roots = compiled_loop(_take_roots)
add_products = compiled_loop(_add_products)
add_part_products = compiled_loop(_add_part_products)
