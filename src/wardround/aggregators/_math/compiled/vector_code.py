"""Straight-line vector code that numba's own front end cannot write: sorting networks and Gram tiles.

Each function here is a numba intrinsic: it emits LLVM instructions on whole vector registers, so a network
of some hundred comparators compiles in a fraction of a second and keeps its wires in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wardround.aggregators._math.compiled import TILE
from wardround.aggregators._math.sorting_networks import Comparator, selecting, sorting_network

__all__ = [
    "INDEX",
    "Columns",
    "Emitters",
    "add_tile_products",
    "emit_middle",
    "emit_nearest",
    "exchange_rows",
    "index",
    "mean_of_middle",
    "mean_of_nearest",
    "mix_tile",
]

REGISTER_BYTES = 64

Emitters = Sequence[Callable[[], None]]
"""Functions that emit some instructions each."""

INDEX, LANE, BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
DOUBLE = ir.DoubleType()


def index(value: int) -> Any:
    return ir.Constant(INDEX, value)


class Columns:
    """Vector-wise access to the columns of an array (a matrix or a vector) inside emitted code."""

    def __init__(self, context: Any, builder: Any, array_type: Any, value: Any) -> None:
        self.builder = builder
        self.array = context.make_array(array_type)(context, builder, value)
        self.itemsize = array_type.dtype.bitwidth // 8
        self.lanes = REGISTER_BYTES // self.itemsize
        self.vector = ir.VectorType(context.get_value_type(array_type.dtype), self.lanes)
        self.wide = ir.VectorType(DOUBLE, self.lanes)
        # numba's C-contiguous arrays only: a row is as long as the last dimension.
        self.width = cgutils.unpack_tuple(builder, self.array.shape)[-1]

    def _at(self, row: Any, column: Any) -> Any:
        b = self.builder
        offset = column if row is None else b.add(b.mul(row, self.width), column)
        return b.bitcast(b.gep(self.array.data, [offset]), self.vector.as_pointer())

    def load(self, row: Any, column: Any) -> Any:
        value = self.builder.load(self._at(row, column))
        value.align = self.itemsize
        return value

    def spread(self, row: Any, column: Any) -> Any:
        """One value in all lanes."""
        b = self.builder
        value = b.load(b.gep(self.array.data, [b.add(b.mul(row, self.width), column)]))
        lane = b.insert_element(ir.Constant(self.vector, ir.Undefined), value, ir.Constant(LANE, 0))
        pattern = ir.Constant(ir.VectorType(LANE, self.lanes), [0] * self.lanes)
        return b.shuffle_vector(lane, ir.Constant(self.vector, ir.Undefined), pattern)

    def store(self, value: Any, row: Any, column: Any) -> None:
        self.builder.store(value, self._at(row, column)).align = self.itemsize

    def prefetch(self, row: Any, column: Any) -> None:
        """Ask for the line that holds this place; a place that does not exist is ignored."""
        b = self.builder
        address = b.bitcast(self._at(row, column), BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), LANE, LANE, LANE])
        function = b.module.declare_intrinsic("llvm.prefetch", [BYTE.as_pointer()], kind)
        # to read (0), into the second-level cache (2), data (1)
        b.call(function, [address, *(ir.Constant(LANE, value) for value in (0, 2, 1))])

    def widen(self, value: Any) -> Any:
        return self.builder.fpext(value, self.wide) if self.itemsize < 8 else value

    def narrow(self, value: Any) -> Any:
        return self.builder.fptrunc(value, self.vector) if self.itemsize < 8 else value


def exchanged_wires(
    builder: Any, wires: list[Any], network: Sequence[Comparator], meanwhile: Emitters = ()
) -> list[Any]:
    """Compare-exchange whole registers along a network.

    What `meanwhile` emits is spread evenly among the comparators. Additions, loads and stores have units of their own
    in the processor, which looks ahead no farther than some dozen instructions for something to do at the same time.
    """
    done = 0
    for place, (low, high) in enumerate(network, start=1):
        wires[low], wires[high] = _in_order(builder, wires[low], wires[high])
        following = place * len(meanwhile) // len(network)
        for emit in meanwhile[done:following]:
            emit()
        done = following
    for emit in meanwhile[done:]:  # a network without comparators
        emit()
    return wires


def _in_order(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The smaller and the greater of two registers, lane by lane."""
    smaller = builder.select(builder.fcmp_ordered("<", a, b), a, b)
    return smaller, builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _column_loop(
    context: Any, builder: Any, signature: Any, args: Any, n: int, emit: Callable[[Columns, list[Any]], Any]
) -> Any:
    """Emit out[c] = emit(column c of the n rows) for start ≤ c < stop, a register of columns at a time.

    The last register is moved back to end with the matrix: its columns are computed twice, alike.
    """
    matrix = Columns(context, builder, signature.args[0], args[0])
    indices = context.make_array(signature.args[1])(context, builder, args[1])
    rows = [builder.load(builder.gep(indices.data, [index(k)])) for k in range(n)]
    out = Columns(context, builder, signature.args[2], args[2])
    last = builder.sub(matrix.width, index(matrix.lanes))
    with cgutils.for_range_slice(builder, args[3], args[4], index(matrix.lanes)) as (start, _):
        column = builder.select(builder.icmp_signed("<", start, last), start, last)
        wires = [matrix.load(row, column) for row in rows]
        out.store(emit(matrix, wires), None, column)
    return context.get_dummy_value()


def _scaled_sum(columns: Columns, terms: list[Any], count: int) -> Any:
    builder = columns.builder
    total = terms[0]
    for term in terms[1:]:
        total = builder.fadd(total, term)
    divisor = ir.Constant(columns.wide, [float(count)] * columns.lanes)
    return columns.narrow(builder.fdiv(total, divisor))


def emit_middle(columns: Columns, wires: list[Any], first: int, last: int, meanwhile: Emitters = ()) -> Any:
    """The mean of the sorted values first…last (inclusive), lane by lane."""
    needed = range(first, last + 1)
    network = selecting(sorting_network(len(wires)), needed)
    wires = exchanged_wires(columns.builder, wires, network, meanwhile)
    return _scaled_sum(columns, [columns.widen(wires[k]) for k in needed], len(needed))


def emit_nearest(columns: Columns, wires: list[Any], dropped: int, meanwhile: Emitters = ()) -> Any:
    """The mean of the n − dropped values that lie nearest to their median, lane by lane.

    In sorted order these are a window of width β = n − dropped. It moves right past position s exactly
    when x[s+β] lies nearer to the median than x[s]: x[s] + x[s+β] < 2·median, decided in float64.
    """
    builder, n, width = columns.builder, len(wires), len(wires) - dropped
    x = [columns.widen(wire) for wire in exchanged_wires(builder, wires, sorting_network(n), meanwhile)]
    twice_median = builder.fadd(x[(n - 1) // 2], x[n // 2])
    moved = [
        builder.fcmp_ordered("<", builder.fadd(x[s], x[s + width]), twice_median) for s in range(dropped)
    ]
    zero = ir.Constant(columns.wide, [0.0] * columns.lanes)
    terms = []
    for k in range(n):
        term = x[k]
        if k < dropped:  # in the first window, until the window moves past it
            term = builder.select(moved[k], zero, term)
        if k >= width:  # only once the window has moved far enough
            term = builder.select(moved[k - width], term, zero)
        terms.append(term)
    return _scaled_sum(columns, terms, width)


@intrinsic(prefer_literal=True)
def mean_of_middle(
    typing: Any, matrix: Any, rows: Any, out: Any, start: Any, stop: Any, n: Any, first: Any, last: Any
) -> Any:
    """out[c] = mean of the sorted values first…last (inclusive) of column c, over the rows at the `n` places `rows`."""

    def emit(columns: Columns, wires: list[Any]) -> Any:
        return emit_middle(columns, wires, first.literal_value, last.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _column_loop(context, builder, signature, args, n.literal_value, emit)

    return types.void(matrix, rows, out, start, stop, n, first, last), codegen


@intrinsic(prefer_literal=True)
def mean_of_nearest(
    typing: Any, matrix: Any, rows: Any, out: Any, start: Any, stop: Any, n: Any, dropped: Any
) -> Any:
    """out[c] = mean of the n − dropped values of column c that lie nearest to their median, over `n` rows."""

    def emit(columns: Columns, wires: list[Any]) -> Any:
        return emit_nearest(columns, wires, dropped.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _column_loop(context, builder, signature, args, n.literal_value, emit)

    return types.void(matrix, rows, out, start, stop, n, dropped), codegen


@intrinsic(prefer_literal=True)
def exchange_rows(typing: Any, rows: Any, low: Any, high: Any, columns: Any) -> Any:
    """Put the smaller value of every column into row `low` and the greater into row `high`.

    So many `columns` (a multiple of a register, known when compiling) are gone through without a branch.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = Columns(context, builder, signature.args[0], args[0])
        for start in range(0, columns.literal_value, array.lanes):
            pair = (array.load(row, index(start)) for row in args[1:3])
            for row, value in zip(args[1:3], _in_order(builder, *pair), strict=True):
                array.store(value, row, index(start))
        return context.get_dummy_value()

    return types.void(rows, low, high, columns), codegen


@intrinsic
def mix_tile(typing: Any, matrix: Any, weights: Any, out: Any, k: Any, column: Any, target: Any) -> Any:
    """out[k+p, target+c] = Σ_i weights[k+p, i] · matrix[i, column+c], for p < TILE and the columns of TILE registers.

    Lines of `out` beyond its last are that one again. All arrays have one precision.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, factors, result = (
            Columns(context, builder, kind, value)
            for kind, value in zip(signature.args[:3], args[:3], strict=True)
        )
        count = cgutils.unpack_tuple(builder, rows.array.shape)[0]
        last = builder.sub(cgutils.unpack_tuple(builder, result.array.shape)[0], index(1))
        lines = [builder.add(args[3], index(p)) for p in range(TILE)]
        lines = [builder.select(builder.icmp_signed("<", line, last), line, last) for line in lines]
        steps = [index(q * rows.lanes) for q in range(TILE)]

        before, body = builder.block, builder.append_basic_block("mix")
        after = builder.append_basic_block("mix.done")
        builder.branch(body)
        builder.position_at_end(body)
        row = builder.phi(INDEX)
        row.add_incoming(index(0), before)
        running = [[builder.phi(rows.vector) for _ in steps] for _ in lines]
        values = [rows.load(row, builder.add(args[4], step)) for step in steps]
        shares = [factors.spread(line, row) for line in lines]
        fused = ("contract",)
        zero = ir.Constant(rows.vector, [0.0] * rows.lanes)
        sums = [
            [
                builder.fadd(builder.fmul(share, value, flags=fused), total, flags=fused)
                for value, total in zip(values, totals, strict=True)
            ]
            for share, totals in zip(shares, running, strict=True)
        ]
        for totals, following in zip(running, sums, strict=True):
            for total, new in zip(totals, following, strict=True):
                total.add_incoming(zero, before)
                total.add_incoming(new, body)
        next_row = builder.add(row, index(1))
        row.add_incoming(next_row, body)
        builder.cbranch(builder.icmp_signed("<", next_row, count), body, after)
        builder.position_at_end(after)
        for line, totals in zip(lines, sums, strict=True):
            for step, total in zip(steps, totals, strict=True):
                result.store(total, line, builder.add(args[5], step))
        return context.get_dummy_value()

    return types.void(matrix, weights, out, k, column, target), codegen


@intrinsic(prefer_literal=True)
def add_tile_products(
    typing: Any, rows: Any, i: Any, j: Any, gram: Any, ahead: Any, row: Any, column: Any, diagonal: Any
) -> Any:
    """gram[i+p, j+q] += ⟨rows[i+p], rows[j+q]⟩ for p, q < TILE; with `diagonal` (i = j) only for p ≤ q.

    The row length is a multiple of a register. Every pair is summed in the same order wherever it stands, so equal rows
    give equal products and a permutation of the rows permutes the bits. Meanwhile two rows of the matrix `ahead`, from
    `row` and `column` on, are called from memory into the second-level cache: arithmetic and memory work at the same
    time.
    """
    pairs = [(p, q) for p in range(TILE) for q in range(p if diagonal.literal_value else 0, TILE)]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        columns = Columns(context, builder, signature.args[0], args[0])
        target = context.make_array(signature.args[3])(context, builder, args[3])
        following_rows = Columns(context, builder, signature.args[4], args[4])
        side = cgutils.unpack_tuple(builder, target.shape)[1]
        left = [builder.add(args[1], index(p)) for p in range(TILE)]
        right = [builder.add(args[2], index(q)) for q in range(TILE)]
        called = [builder.add(args[5], index(k)) for k in range(2)]

        before, body = builder.block, builder.append_basic_block("tile")
        after = builder.append_basic_block("tile.done")
        builder.branch(body)
        builder.position_at_end(body)
        column = builder.phi(INDEX)
        column.add_incoming(index(0), before)
        running = [builder.phi(columns.vector) for _ in pairs]
        for row in called:
            following_rows.prefetch(row, builder.add(args[6], column))
        a = [columns.load(row, column) for row in left]
        b = a if diagonal.literal_value else [columns.load(row, column) for row in right]
        fused = ("contract",)  # lets the machine use a fused multiply-add where it has one
        zero = ir.Constant(columns.vector, [0.0] * columns.lanes)
        sums = []
        for (p, q), total in zip(pairs, running, strict=True):
            sums.append(builder.fadd(builder.fmul(a[p], b[q], flags=fused), total, flags=fused))
            total.add_incoming(zero, before)
            total.add_incoming(sums[-1], body)
        following = builder.add(column, index(columns.lanes))
        column.add_incoming(following, body)
        builder.cbranch(builder.icmp_signed("<", following, columns.width), body, after)
        builder.position_at_end(after)

        for (p, q), products in zip(pairs, sums, strict=True):
            place = builder.gep(target.data, [builder.add(builder.mul(left[p], side), right[q])])
            total = _sum_of_lanes(builder, columns.widen(products), columns.lanes)
            builder.store(builder.fadd(builder.load(place), total), place)
        return context.get_dummy_value()

    return types.void(rows, i, j, gram, ahead, row, column, diagonal), codegen


def _sum_of_lanes(builder: Any, vector: Any, lanes: int) -> Any:
    """The sum of a register's lanes, by halving."""
    while lanes > 1:
        lanes //= 2
        halves = [
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(LANE, lanes), list(range(start, start + lanes)))
            )
            for start in (0, lanes)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(LANE, 0))
