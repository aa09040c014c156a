"""The compiled loops. All release the GIL and work on a range of columns, so that threads can share the work.

`matrix` is always N × D, C-contiguous, float32 or float64; a loop reads its columns start ≤ c < stop and adds to, or
writes into, the arrays that are named last. Whatever `norms`, `dots` and `totals` hold is float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from wardround.aggregators._math.compiled import MIXED_COLUMNS, MOST_WIRES, TILE, vector_code
from wardround.aggregators._math.sorting_networks import Comparator, selecting, sorting_network
from wardround.compilation import compiled_loop

__all__ = [
    "PADDING",
    "RUN",
    "add_distances_and_replace",
    "add_dots_with_two",
    "add_norms_and_dots",
    "add_pair_distances",
    "add_signed",
    "add_squared_norms",
    "compiled_loop",
    "gram_kernel",
    "middle_kernel",
    "mix_rows",
    "nearest_kernel",
    "scratch_columns",
    "sum_rows",
]

BLOCK = 1024
"""Columns of two rows whose distance is measured at a time."""
RUN = 8 * BLOCK
"""Columns of a row that are read in one go where the rows need not meet in the cache: memory likes long runs."""
PADDING = 16
"""A register of zeros behind a block's columns, so that equal columns of the rows fall into different cache sets."""
SORTED_COLUMNS = 64
"""Columns of many rows that are sorted at a time: those of a thousand rows stay in the second-level cache."""
GATHERED = 2**17
"""Values that are gathered from the rows before they are sorted: they stay in the second-level cache."""

# Inside compiled code an intrinsic takes one argument less than its definition, the typing context.
exchange_rows: Any = vector_code.exchange_rows
mean_of_middle: Any = vector_code.mean_of_middle
mean_of_nearest: Any = vector_code.mean_of_nearest
add_tile_products: Any = vector_code.add_tile_products
mix_tile: Any = vector_code.mix_tile


def scratch_columns(rows: int) -> int:
    """Columns of the scratch space in which so many rows are multiplied with one another: a block and the padding.

    The rows of a block are loaded again for every tile. Some 24 of them stay in the first-level cache; of more, a
    longer block spends less on adding up the lanes of its products.
    """
    return (256 if rows <= 24 else 512) + PADDING


@functools.cache
def middle_kernel(n: int, first: int, last: int) -> Callable[..., None]:
    """Compile `kernel(matrix, rows, out, norms, start, stop)` for n rows.

    It writes out[c] = mean of the sorted values first…last of column c over the rows at the n places `rows`, and adds
    norms[i] += ‖matrix[i]‖². The norms come first, run by run: one row after the other is the way the memory is read
    fastest, and the columns are then in the cache.
    """
    if n > MOST_WIRES:
        network = _places(selecting(sorting_network(n), range(first, last + 1)))
        return lambda matrix, rows, out, norms, start, stop: middle_of_many(
            matrix, rows, network, first, last, out, norms, start, stop
        )

    def middle(matrix: Any, rows: Any, out: Any, norms: Any, start: int, stop: int) -> None:
        for a in range(start, stop, RUN):
            b = min(a + RUN, stop)
            add_squared_norms(matrix, norms, a, b)
            mean_of_middle(matrix, rows, out, a, b, n, first, last)

    return compiled_loop(middle)


@functools.cache
def nearest_kernel(n: int, dropped: int) -> Callable[..., None]:
    """Compile `kernel(matrix, rows, out, start, stop)` for n rows.

    It writes out[c] = mean of the n − dropped values of column c, over the rows at the n places `rows`, that are
    nearest to their median.
    """
    if n > MOST_WIRES:
        network = _places(sorting_network(n))
        return lambda matrix, rows, out, start, stop: nearest_of_many(
            matrix, rows, network, dropped, out, start, stop
        )

    def nearest(matrix: Any, rows: Any, out: Any, start: int, stop: int) -> None:
        mean_of_nearest(matrix, rows, out, start, stop, n, dropped)

    return compiled_loop(nearest)


def _places(network: list[Comparator]) -> Any:
    """A network as K × 2 wires."""
    return np.array(network, dtype=np.int64).reshape(-1, 2)


def _gather(matrix: Any, rows: Any, blocks: Any, start: int, stop: int) -> None:
    """blocks[b, i, c] = matrix[rows[i], start + b·SORTED_COLUMNS + c]; what would lie beyond `stop` stays as it is.

    Of every row a long run is read at once: jumping from row to row costs more than sorting does.
    """
    for i in range(len(rows)):
        row = matrix[rows[i], start:stop]
        for b in range(0, stop - start, SORTED_COLUMNS):
            values, wire = row[b : b + SORTED_COLUMNS], blocks[b // SORTED_COLUMNS, i]
            for c in range(len(values)):
                wire[c] = values[c]


def _sort_block(wires: Any, network: Any) -> None:
    """Order the columns of `wires` (n × SORTED_COLUMNS) along the network."""
    for k in range(len(network)):
        exchange_rows(wires, network[k, 0], network[k, 1], SORTED_COLUMNS)


def _middle_of_many(
    matrix: Any, rows: Any, network: Any, first: int, last: int, out: Any, norms: Any, start: int, stop: int
) -> None:
    """As the kernel of `middle_kernel`, for any number of rows: the network is data, not code."""
    n = len(rows)
    blocks = np.zeros((max(1, GATHERED // (n * SORTED_COLUMNS)), n, SORTED_COLUMNS), dtype=matrix.dtype)
    total = np.empty(SORTED_COLUMNS, dtype=np.float64)
    run = len(blocks) * SORTED_COLUMNS
    for a in range(start, stop, run):
        b = min(a + run, stop)
        add_squared_norms(matrix, norms, a, b)
        gather(matrix, rows, blocks, a, b)
        for block in range(a, b, SORTED_COLUMNS):
            wires = blocks[(block - a) // SORTED_COLUMNS]
            sort_block(wires, network)
            total[:] = 0
            for k in range(first, last + 1):
                for c in range(SORTED_COLUMNS):
                    total[c] += wires[k, c]
            for c in range(min(SORTED_COLUMNS, b - block)):
                out[block + c] = total[c] / (last + 1 - first)


def _nearest_of_many(
    matrix: Any, rows: Any, network: Any, dropped: int, out: Any, start: int, stop: int
) -> None:
    """As the kernel of `nearest_kernel`, for any number of rows (see `vector_code.mean_of_nearest`)."""
    n = len(rows)
    width = n - dropped
    blocks = np.zeros((max(1, GATHERED // (n * SORTED_COLUMNS)), n, SORTED_COLUMNS), dtype=matrix.dtype)
    total, twice_median = np.empty(SORTED_COLUMNS), np.empty(SORTED_COLUMNS)
    moves = np.empty(SORTED_COLUMNS, dtype=np.int64)
    run = len(blocks) * SORTED_COLUMNS
    for a in range(start, stop, run):
        b = min(a + run, stop)
        gather(matrix, rows, blocks, a, b)
        for block in range(a, b, SORTED_COLUMNS):
            wires = blocks[(block - a) // SORTED_COLUMNS]
            sort_block(wires, network)
            moves[:] = 0
            total[:] = 0
            for c in range(SORTED_COLUMNS):
                twice_median[c] = np.float64(wires[(n - 1) // 2, c]) + np.float64(wires[n // 2, c])
            for s in range(dropped):
                for c in range(SORTED_COLUMNS):
                    ends = np.float64(wires[s, c]) + np.float64(wires[s + width, c])
                    moves[c] += np.int64(ends < twice_median[c])
            for k in range(n):
                for c in range(SORTED_COLUMNS):
                    inside = (k >= moves[c]) & (k < moves[c] + width)
                    total[c] += np.float64(wires[k, c]) if inside else 0.0
            for c in range(min(SORTED_COLUMNS, b - block)):
                out[block + c] = total[c] / width


def _sum_rows(matrix: Any, weights: Any, out: Any, start: int, stop: int) -> None:
    """out[c] = Σ_i weights[i] · matrix[i, c] (N weights, D outputs)."""
    total = np.empty(RUN, dtype=weights.dtype)
    for a in range(start, stop, RUN):
        b = min(a + RUN, stop)
        add_rows(matrix, weights, total, out[a:b], a, b)


def _mix_rows(matrix: Any, weights: Any, out: Any, start: int, stop: int) -> None:
    """out[k, c − start] = Σ_i weights[k, i] · matrix[i, c], all in the precision of the matrix.

    `weights` is K × N, `out` K × (stop − start), of MIXED_COLUMNS columns at least. A tile of outputs is summed in the
    registers; the tiles of the same columns find the rows in the cache. The last columns are computed twice, alike.
    """
    for block in range(start, stop, MIXED_COLUMNS):
        a = min(block, stop - MIXED_COLUMNS)
        for k in range(0, out.shape[0], TILE):
            for c in range(0, MIXED_COLUMNS, TILE * 64 // matrix.itemsize):
                mix_tile(matrix, weights, out, k, a + c, a + c - start)


def _add_rows(matrix: Any, weights: Any, total: Any, out: Any, start: int, stop: int) -> None:
    """out = Σ_i weights[i] · matrix[i, start:stop], summed in `total`: four rows per pass over it."""
    n = matrix.shape[0]
    width = stop - start
    part = total[:width]
    part[:] = 0
    i = 0
    while i + 4 <= n:
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        r0, r1 = matrix[i, start:stop], matrix[i + 1, start:stop]
        r2, r3 = matrix[i + 2, start:stop], matrix[i + 3, start:stop]
        for c in range(width):
            part[c] += (w0 * r0[c] + w1 * r1[c]) + (w2 * r2[c] + w3 * r3[c])
        i += 4
    while i < n:
        w0, r0 = weights[i], matrix[i, start:stop]
        for c in range(width):
            part[c] += w0 * r0[c]
        i += 1
    for c in range(width):
        out[c] = part[c]


def _add_signed(block: Any, bucket: Any, sign: Any, into: Any) -> None:
    """into[bucket[c], i] += sign[c] · block[i, c], column after column, in float64; a row's sums stay in the cache.

    `block` is rows × columns, `bucket` and `sign` have one entry per column, `into` is outputs × rows.
    """
    sums = np.empty(into.shape[0], dtype=np.float64)
    for i in range(block.shape[0]):
        row = block[i]
        for b in range(len(sums)):
            sums[b] = into[b, i]
        for c in range(len(bucket)):
            sums[bucket[c]] += sign[c] * np.float64(row[c])
        for b in range(len(sums)):
            into[b, i] = sums[b]


def _add_squared_norms(matrix: Any, totals: Any, start: int, stop: int) -> None:
    """totals[i] += ‖matrix[i]‖² (N totals), wholly in float64.

    The memory is slower than the arithmetic; four long rows at a time keep it busiest.
    """
    n = matrix.shape[0]
    i = 0
    while i + 4 <= n:
        r0, r1 = matrix[i, start:stop], matrix[i + 1, start:stop]
        r2, r3 = matrix[i + 2, start:stop], matrix[i + 3, start:stop]
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        for c in range(stop - start):
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
        r0 = matrix[i, start:stop]
        t0 = 0.0
        for c in range(stop - start):
            x0 = np.float64(r0[c])
            t0 += x0 * x0
        totals[i] += t0
        i += 1


def _add_norms_and_dots(matrix: Any, vector: Any, norms: Any, dots: Any, start: int, stop: int) -> None:
    """norms[i] += ‖matrix[i]‖² and dots[i] += ⟨matrix[i], vector⟩ in float64.

    `vector` has D values, `dots` N, `norms` N + 1: ‖vector‖² is added to the last.
    """
    n = matrix.shape[0]
    v = vector[start:stop]
    i = 0
    while i + 4 <= n:
        r0, r1 = matrix[i, start:stop], matrix[i + 1, start:stop]
        r2, r3 = matrix[i + 2, start:stop], matrix[i + 3, start:stop]
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        d0, d1, d2, d3 = 0.0, 0.0, 0.0, 0.0
        for c in range(stop - start):
            y = np.float64(v[c])
            x0, x1, x2, x3 = np.float64(r0[c]), np.float64(r1[c]), np.float64(r2[c]), np.float64(r3[c])
            t0 += x0 * x0
            t1 += x1 * x1
            t2 += x2 * x2
            t3 += x3 * x3
            d0 += x0 * y
            d1 += x1 * y
            d2 += x2 * y
            d3 += x3 * y
        norms[i] += t0
        norms[i + 1] += t1
        norms[i + 2] += t2
        norms[i + 3] += t3
        dots[i] += d0
        dots[i + 1] += d1
        dots[i + 2] += d2
        dots[i + 3] += d3
        i += 4
    while i < n:
        r0 = matrix[i, start:stop]
        t0, d0 = 0.0, 0.0
        for c in range(stop - start):
            x0 = np.float64(r0[c])
            t0 += x0 * x0
            d0 += x0 * np.float64(v[c])
        norms[i] += t0
        dots[i] += d0
        i += 1
    own = 0.0
    for c in range(stop - start):
        y = np.float64(v[c])
        own += y * y
    norms[n] += own


def _add_dots_with_two(matrix: Any, first: Any, second: Any, dots: Any, start: int, stop: int) -> None:
    """dots[0, i] += ⟨matrix[i], first⟩ and dots[1, i] += ⟨matrix[i], second⟩ in float64 (vectors of D values)."""
    v, w = first[start:stop], second[start:stop]
    n = matrix.shape[0]
    i = 0
    while i + 4 <= n:
        r0, r1 = matrix[i, start:stop], matrix[i + 1, start:stop]
        r2, r3 = matrix[i + 2, start:stop], matrix[i + 3, start:stop]
        v0, v1, v2, v3 = 0.0, 0.0, 0.0, 0.0
        w0, w1, w2, w3 = 0.0, 0.0, 0.0, 0.0
        for c in range(stop - start):
            y, z = np.float64(v[c]), np.float64(w[c])
            x0, x1, x2, x3 = np.float64(r0[c]), np.float64(r1[c]), np.float64(r2[c]), np.float64(r3[c])
            v0 += x0 * y
            v1 += x1 * y
            v2 += x2 * y
            v3 += x3 * y
            w0 += x0 * z
            w1 += x1 * z
            w2 += x2 * z
            w3 += x3 * z
        dots[0, i] += v0
        dots[0, i + 1] += v1
        dots[0, i + 2] += v2
        dots[0, i + 3] += v3
        dots[1, i] += w0
        dots[1, i + 1] += w1
        dots[1, i + 2] += w2
        dots[1, i + 3] += w3
        i += 4
    while i < n:
        r0 = matrix[i, start:stop]
        v0, w0 = 0.0, 0.0
        for c in range(stop - start):
            x0 = np.float64(r0[c])
            v0 += x0 * np.float64(v[c])
            w0 += x0 * np.float64(w[c])
        dots[0, i] += v0
        dots[1, i] += w0
        i += 1


def _add_gram(
    matrix: Any,
    centre: Any,
    anchor: Any,
    rows: Any,
    gram: Any,
    norms: Any,
    projections: Any,
    start: int,
    stop: int,
) -> None:
    """gram += (matrix − centre)(matrix − centre)ᵀ, upper triangle, in the precision of `rows`.

    Also norms[i] += ‖matrix[i]‖² and, where there is an anchor,
    projections[i] += ⟨matrix[i] − centre, anchor + centre⟩.

    Args:
        matrix: N × D rows.
        centre: D values.
        anchor: D values, or none at all (size 0).
        rows: Scratch space, (side + 1) × `scratch_columns(side)`, zero where the matrix has no row; side is N rounded
            up to a multiple of TILE.
        gram: side × side.
        norms: N values.
        projections: N + 1 values; ‖anchor + centre‖² is added to the last.
        start: First column.
        stop: Column after the last.
    """
    n = matrix.shape[0]
    side = rows.shape[0] - 1
    base, block = rows[side], rows.shape[1] - PADDING
    for a in range(start, stop, block):
        b = min(a + block, stop)
        width = b - a
        if width < block:
            rows[:, :] = 0
        origin = centre[a:b]
        for i in range(n):
            source, target = matrix[i, a:b], rows[i]
            own = rows.dtype.type(0)
            for c in range(width):
                x = rows.dtype.type(source[c])
                target[c] = x - rows.dtype.type(origin[c])
                own += x * x
            norms[i] += own
        if anchor.size:
            weights = anchor[a:b]
            own = rows.dtype.type(0)
            for c in range(width):
                base[c] = rows.dtype.type(weights[c]) + rows.dtype.type(origin[c])
                own += base[c] * base[c]
            projections[n] += own
            for i in range(n):
                target = rows[i]
                seen = rows.dtype.type(0)
                for c in range(width):
                    seen += target[c] * base[c]
                projections[i] += seen
        ahead = 0
        for i in range(0, side, TILE):
            add_tile_products(rows, i, i, gram, matrix, ahead, b, True)
            ahead = min(ahead + 2, max(n - 2, 0))
            for j in range(i + TILE, side, TILE):
                add_tile_products(rows, i, j, gram, matrix, ahead, b, False)
                ahead = min(ahead + 2, max(n - 2, 0))


def _add_pair_distances(matrix: Any, pairs: Any, totals: Any, start: int, stop: int) -> None:
    """totals[k] += ‖matrix[i] − matrix[j]‖² for the k-th of K pairs (i, j) (K × 2), wholly in float64."""
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        for k in range(pairs.shape[0]):
            x, y = matrix[pairs[k, 0], a:b], matrix[pairs[k, 1], a:b]
            total = 0.0
            for c in range(b - a):
                difference = np.float64(x[c]) - np.float64(y[c])
                total += difference * difference
            totals[k] += total


def _add_distances_of(past: Any, matrix: Any, step: Any, totals: Any, start: int, stop: int) -> None:
    """totals[i] += ‖matrix[i] − past[i] − step‖², wholly in float64, and then past[i] = matrix[i].

    Two long rows at a time: the memory is a third faster than with one.
    """
    e = step[start:stop]
    n = matrix.shape[0]
    for i in range(0, n, 2):
        j = min(i + 1, n - 1)  # a row that is left over goes with itself
        r0, r1 = matrix[i, start:stop], matrix[j, start:stop]
        p0, p1 = past[i, start:stop], past[j, start:stop]
        t0, t1 = 0.0, 0.0
        for c in range(stop - start):
            y, x0, x1 = np.float64(e[c]), r0[c], r1[c]
            d0 = np.float64(x0) - np.float64(p0[c]) - y
            d1 = np.float64(x1) - np.float64(p1[c]) - y
            t0 += d0 * d0
            t1 += d1 * d1
            p0[c] = x0
            p1[c] = x1
        totals[i] += t0
        if j > i:
            totals[j] += t1


def _add_distances_and_replace(
    past: Any, matrix: Any, step: Any, weights: Any, totals: Any, out: Any, start: int, stop: int
) -> None:
    """As `add_distances_of`, and out[c] = Σ_i weights[i] · matrix[i, c] while the rows are in the cache.

    `past` and `matrix` are N × D, `step` and `out` have D values, `weights` and `totals` N.
    """
    for a in range(start, stop, 4 * RUN):
        b = min(a + 4 * RUN, stop)
        add_distances_of(past, matrix, step, totals, a, b)
        sum_rows(matrix, weights, out, a, b)


add_rows = compiled_loop(_add_rows)
add_distances_of = compiled_loop(_add_distances_of, reorder=True)
sum_rows = compiled_loop(_sum_rows)
add_distances_and_replace = compiled_loop(_add_distances_and_replace)
mix_rows = compiled_loop(_mix_rows)
add_signed = compiled_loop(_add_signed)
add_squared_norms = compiled_loop(_add_squared_norms, reorder=True)
add_norms_and_dots = compiled_loop(_add_norms_and_dots, reorder=True)
add_dots_with_two = compiled_loop(_add_dots_with_two, reorder=True)
add_gram = compiled_loop(_add_gram, reorder=True)
add_pair_distances = compiled_loop(_add_pair_distances, reorder=True)
gather = compiled_loop(_gather)
sort_block = compiled_loop(_sort_block)
middle_of_many = compiled_loop(_middle_of_many)
nearest_of_many = compiled_loop(_nearest_of_many)


@functools.cache
def gram_kernel(rows_of_centre: int) -> Callable[..., None]:
    """Compile `kernel(matrix, sample, centre, …)`: `add_gram` about the median of the rows at the places `sample`.

    The median of so many sampled rows is written into `centre` (D values), block by block, so that the rows are read
    once for both. With 0 sampled rows, `centre` is taken as it is.
    """
    if rows_of_centre == 0:

        def about_given(
            matrix: Any, sample: Any, centre: Any, anchor: Any, rows: Any, gram: Any, norms: Any, projections: Any,
            start: int, stop: int,
        ) -> None:  # fmt: skip
            add_gram(matrix, centre, anchor, rows, gram, norms, projections, start, stop)

        return compiled_loop(about_given)
    first, last = (rows_of_centre - 1) // 2, rows_of_centre // 2

    def about_median(
        matrix: Any, sample: Any, centre: Any, anchor: Any, rows: Any, gram: Any, norms: Any, projections: Any,
        start: int, stop: int,
    ) -> None:  # fmt: skip
        block = rows.shape[1] - PADDING
        for a in range(start, stop, block):
            b = min(a + block, stop)
            mean_of_middle(matrix, sample, centre, a, b, rows_of_centre, first, last)
            add_gram(matrix, centre, anchor, rows, gram, norms, projections, a, b)

    return compiled_loop(about_median)
