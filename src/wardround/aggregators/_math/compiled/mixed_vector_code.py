"""Straight-line vector code that mixes rows (see `shared_sums`) and orders the mixtures, as numba intrinsics.

Mixing is additions, loads and stores; ordering is comparisons. While one register of columns is ordered, the next one
is mixed, instruction by instruction side by side: the two take little longer than the ordering alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wardround.aggregators._math.compiled.vector_code import (
    Columns,
    Emitters,
    emit_middle,
    emit_nearest,
    index,
)
from wardround.aggregators._math.shared_sums import GROUP, SUMS

__all__ = ["mixed_middle", "mixed_nearest"]

AHEAD = 512
"""Columns between those that are mixed and those that are called from memory meanwhile."""


class _Mixing:
    """Emits the mixing of one register of columns. All arrays of values have one precision."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, args: Any, shape: tuple[int, int, int]
    ) -> None:
        """Take the arguments of an intrinsic.

        Args:
            context: numba's.
            builder: Where to emit.
            signature: Types of `args`.
            args: matrix (N × D), rows, factors and places as in `SharedSums`, with a last factor of 1, and the places
                times the lanes of a register; sums and mixed: scratch, SUMS·G and n registers, zero at first.
            shape: n mixtures, of rows in G groups; sums in each.
        """
        kinds, self.builder = signature.args, builder
        self.n, self.groups, self.count = shape
        self.matrix = Columns(context, builder, kinds[0], args[0])
        self.factors = Columns(context, builder, kinds[2], args[2])
        self.sums = Columns(context, builder, kinds[4], args[4])
        self.mixed = Columns(context, builder, kinds[5], args[5])
        self._one = self.factors.spread(index(0), index(GROUP * self.groups))
        self._rows = context.make_array(kinds[1])(context, builder, args[1]).data
        self._places = context.make_array(kinds[3])(context, builder, args[3]).data

    def steps(self, column: Any) -> Iterator[Callable[[], None]]:
        """Mix the columns from `column` on, a few instructions per step."""
        for group in range(self.groups):
            totals: list[Any] = [None] * SUMS
            for p in range(GROUP):
                yield partial(self._load_row, group, p, column, totals)
            for number in range(1, SUMS):
                yield partial(self._add_subset, group, number, totals)
        for k in range(self.n):
            total: list[Any] = []
            for p in range(self.count):
                yield partial(self._add_place, k, p, total)

    def _sum(self, a: Any, b: Any) -> Any:
        """a + b as a·1 + b, which is the same to the bit.

        Comparisons and additions share units of the processor; fused multiplications have others.
        """
        columns = self.matrix
        name = f"llvm.fmuladd.v{columns.lanes}f{8 * columns.itemsize}"
        kind = ir.FunctionType(columns.vector, [columns.vector] * 3)
        fused = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(fused, [a, self._one, b])

    def _load_row(self, group: int, p: int, column: Any, totals: list[Any]) -> None:
        """Load a row of a group, times its factor."""
        place = index(GROUP * group + p)
        row = self.builder.load(self.builder.gep(self._rows, [place]))
        self.matrix.prefetch(row, self.builder.add(column, index(AHEAD)))
        factor = self.factors.spread(index(0), place)
        totals[1 << p] = self.builder.fmul(self.matrix.load(row, column), factor)

    def _add_subset(self, group: int, number: int, totals: list[Any]) -> None:
        """Store the sum of a subset of a group's rows; its number has a bit for each of them."""
        lowest = number & -number
        if number != lowest:
            totals[number] = self._sum(totals[number - lowest], totals[lowest])
        self.sums.store(totals[number], None, index((SUMS * group + number) * self.sums.lanes))

    def _add_place(self, k: int, p: int, total: list[Any]) -> None:
        """Add the p-th of the sums that mixture k is made of; the last one completes it."""
        line = self.builder.load(self.builder.gep(self._places, [index(self.count * k + p)]))
        value = self.sums.load(None, line)
        total[:] = [self._sum(total[0], value) if total else value]
        if p == self.count - 1:
            self.mixed.store(total[0], None, index(k * self.mixed.lanes))


def _mixed_loop(
    mixing: _Mixing, out: Columns, start: Any, stop: Any, emit: Callable[[list[Any], Emitters], Any]
) -> None:
    """Emit out[c] = emit(column c of the mixtures) for start ≤ c < stop, a register of columns at a time.

    Each turn orders what the turn before has mixed. The first has nothing to order: what it writes, the second
    overwrites. The last register is moved back to end with the matrix: its columns are computed twice, alike.
    """
    builder, lanes = mixing.builder, mixing.matrix.lanes
    last = builder.sub(mixing.matrix.width, index(lanes))

    def within(column: Any) -> Any:
        return builder.select(builder.icmp_signed("<", column, last), column, last)

    before = builder.sub(start, index(lanes))
    with cgutils.for_range_slice(builder, before, stop, index(lanes)) as (column, _):
        mixed = builder.select(builder.icmp_signed("<", column, start), start, column)
        wires = [mixing.mixed.load(None, index(k * lanes)) for k in range(mixing.n)]
        following = within(builder.add(column, index(lanes)))
        out.store(emit(wires, list(mixing.steps(following))), None, within(mixed))


@intrinsic(prefer_literal=True)
def mixed_middle(
    typing: Any, matrix: Any, rows: Any, factors: Any, places: Any, sums: Any, mixed: Any, out: Any,
    start: Any, stop: Any, n: Any, groups: Any, count: Any, first: Any, last: Any,
) -> Any:  # fmt: skip
    """out[c] = mean of the sorted values first…last (inclusive) of column c of the n mixtures (see `_Mixing`)."""
    shape = n.literal_value, groups.literal_value, count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mixing = _Mixing(context, builder, signature, args, shape)

        def emit(wires: list[Any], meanwhile: Emitters) -> Any:
            return emit_middle(mixing.mixed, wires, first.literal_value, last.literal_value, meanwhile)

        out_columns = Columns(context, builder, signature.args[6], args[6])
        _mixed_loop(mixing, out_columns, args[7], args[8], emit)
        return context.get_dummy_value()

    arguments = (matrix, rows, factors, places, sums, mixed, out, start, stop, n, groups, count, first, last)
    return types.void(*arguments), codegen


@intrinsic(prefer_literal=True)
def mixed_nearest(
    typing: Any, matrix: Any, rows: Any, factors: Any, places: Any, sums: Any, mixed: Any, out: Any,
    start: Any, stop: Any, n: Any, groups: Any, count: Any, dropped: Any,
) -> Any:  # fmt: skip
    """As `mixed_middle`, for the mean of the n − dropped values of a column nearest to their median."""
    shape = n.literal_value, groups.literal_value, count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mixing = _Mixing(context, builder, signature, args, shape)

        def emit(wires: list[Any], meanwhile: Emitters) -> Any:
            return emit_nearest(mixing.mixed, wires, dropped.literal_value, meanwhile)

        out_columns = Columns(context, builder, signature.args[6], args[6])
        _mixed_loop(mixing, out_columns, args[7], args[8], emit)
        return context.get_dummy_value()

    arguments = (matrix, rows, factors, places, sums, mixed, out, start, stop, n, groups, count, dropped)
    return types.void(*arguments), codegen
