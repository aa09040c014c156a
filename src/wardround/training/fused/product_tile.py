"""One tile of a matrix product as straight vector code, which numba's own front end cannot write.

The tile's sums stay in registers from the first term to the last: that is most of the speed of a small product.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["REGISTER_BYTES", "TALL", "WIDE", "product_tile"]

MANY_REGISTERS = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
REGISTER_BYTES = 64 if MANY_REGISTERS else 32
WIDE = 4 if MANY_REGISTERS else 2
"""Registers of columns of the widest tile."""
TALL = 8 if MANY_REGISTERS else 4
"""Rows of the tallest tile. TALL × 2 or TALL / 2 × WIDE sums leave registers for what is multiplied."""

INDEX, LANE = ir.IntType(64), ir.IntType(32)


@intrinsic(prefer_literal=True)
def product_tile(
    typing: Any,
    a: Any, a_first: Any, a_row: Any, a_term: Any,
    b: Any, b_first: Any, b_term: Any,
    c: Any, c_first: Any, c_row: Any,
    terms: Any, rows: Any, registers: Any,
) -> Any:  # fmt: skip
    """c[p, q] = Σ_k a[p, k] · b[k, q] for k < terms, p < rows and q < registers · lanes.

    All three lie in flat arrays: a[p, k] at a_first + p · a_row + k · a_term, b[k, q] at b_first + k · b_term + q, and
    c[p, q] at c_first + p · c_row + q. `rows` and `registers` are constants. Terms are added in order, whatever the
    tile, so that a sum does not depend on where in a matrix it stands.
    """
    height, width = rows.literal_value, registers.literal_value
    lanes = REGISTER_BYTES * 8 // a.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 4, 7)]
        a_data, b_data, c_data = arrays
        a_first, a_row, a_term, b_first, b_term = args[1], args[2], args[3], args[5], args[6]
        c_first, c_row, terms = args[8], args[9], args[10]
        scalar = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(scalar, lanes)
        zero = ir.Constant(vector, [0.0] * lanes)
        everywhere = ir.Constant(ir.VectorType(LANE, lanes), [0] * lanes)
        tile = [(p, q) for p in range(height) for q in range(width)]

        def constant(value: int) -> Any:
            return ir.Constant(INDEX, value)

        def place(data: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        row_offsets = [builder.mul(a_row, constant(p)) for p in range(height)]
        before, body = builder.block, builder.append_basic_block("tile")
        after = builder.append_basic_block("tile.done")
        builder.cbranch(builder.icmp_signed(">", terms, constant(0)), body, after)

        builder.position_at_end(body)
        k, a_at, b_at = (builder.phi(INDEX) for _ in range(3))
        running = {cell: builder.phi(vector) for cell in tile}
        columns = []
        for q in range(width):
            column = builder.load(place(b_data, builder.add(b_at, constant(q * lanes))))
            column.align = signature.args[0].dtype.bitwidth // 8
            columns.append(column)
        sums = {}
        fused = ("contract",)  # lets the machine use a fused multiply-add where it has one
        for p in range(height):
            one = builder.load(builder.gep(a_data, [builder.add(a_at, row_offsets[p])]))
            alone = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.Constant(LANE, 0))
            spread = builder.shuffle_vector(alone, alone, everywhere)
            for q in range(width):
                product = builder.fmul(spread, columns[q], flags=fused)
                sums[p, q] = builder.fadd(product, running[p, q], flags=fused)
        following = builder.add(k, constant(1))
        for phi, first, step in (
            (k, constant(0), constant(1)),
            (a_at, a_first, a_term),
            (b_at, b_first, b_term),
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(following if phi is k else builder.add(phi, step), body)
        for cell in tile:
            running[cell].add_incoming(zero, before)
            running[cell].add_incoming(sums[cell], body)
        builder.cbranch(builder.icmp_signed("<", following, terms), body, after)

        builder.position_at_end(after)
        totals = {cell: builder.phi(vector) for cell in tile}
        for cell in tile:
            totals[cell].add_incoming(zero, before)
            totals[cell].add_incoming(sums[cell], body)
        for p, q in tile:
            offset = builder.add(c_first, builder.add(builder.mul(c_row, constant(p)), constant(q * lanes)))
            stored = builder.store(totals[p, q], place(c_data, offset))
            stored.align = signature.args[0].dtype.bitwidth // 8
        return context.get_dummy_value()

    signature = types.void(
        a, a_first, a_row, a_term, b, b_first, b_term, c, c_first, c_row, terms, rows, registers
    )
    return signature, codegen
