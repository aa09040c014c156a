r"""All inner products of the parts of updates, and whether parts add up, in one read of updates and parts.

Everything a rule asks about directions and centres of N clients' parts of C outcomes follows from the (N·C) × (N·C)
matrix of their inner products. The read that checks the parts gives it. Only two outcomes are ever compared with each
other: with more, parts are compared within their outcome, and C blocks of N × N are all there is to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.columns import column_ranges, for_each_range
from wardround.aggregators._math.compiled import TILE, loops_for, outcome_loops_for
from wardround.updates import Parts

__all__ = ["PartProducts", "measure_parts"]

CHUNK = 16_384
"""Columns whose products torch sums in the parts' precision before they are added up in float64."""


@dataclass(frozen=True, eq=False)
class PartProducts:
    """What one read tells of N clients' updates and their parts of C outcomes, all in float64."""

    gram: Tensor
    """(N·C) × (N·C) inner products of the parts. Unless there are two outcomes, only squared norms, and 0 elsewhere."""
    compressed: Tensor
    """The same of the signed square roots of their coordinates; unless there are two outcomes, 0 between parts of
    different ones. What an optimiser makes of a gradient, it makes by
    scaling coordinates (Adam by orders of magnitude, where the outcomes of a client cancel); directions that are
    compared in this way do not depend on it much."""
    gaps: Tensor
    """N norms: how far a client's parts are from adding up to its update."""
    squared_norms: Tensor
    """N squared norms of the updates; not finite where an update is not."""

    @property
    def part_norms(self) -> Tensor:
        """N × C norms of the parts; not finite where a part is not."""
        return self.gram.diagonal().sqrt().view(len(self.gaps), -1)

    def select(self, clients: Tensor) -> PartProducts:
        """The same of some clients only, by their indices."""
        outcomes = len(self.gram) // max(1, len(self.gaps))
        parts = (outcomes * clients[:, None] + torch.arange(outcomes)).flatten()
        both = parts[:, None], parts[None, :]
        return PartProducts(
            self.gram[both], self.compressed[both], self.gaps[clients], self.squared_norms[clients]
        )


def measure_parts(matrix: Tensor, parts: Parts) -> PartProducts:
    """Measure the inner products of all parts, and compare their sums with the updates.

    Products are taken in the parts' precision and summed in float64, block by block.

    Args:
        matrix: N × D updates, which need not be finite.
        parts: Their parts of C outcomes, N × C × D.

    >>> rows = torch.tensor([[[3.0, 4.0], [0.0, 4.0]]])
    >>> measured = measure_parts(torch.tensor([[3.0, 7.0]]), Parts(rows, torch.ones(1, 2)))
    >>> measured.gram.tolist(), measured.compressed[0, 1].item(), measured.gaps.tolist()
    ([[25.0, 16.0], [16.0, 16.0]], 4.0, [1.0])
    """
    clients, outcomes, columns = parts.rows.shape
    rows = parts.rows.reshape(clients * outcomes, columns)
    measure = _by_torch
    if outcome_loops_for(rows) is not None and loops_for(matrix) is not None and matrix.dtype == rows.dtype:
        measure = _by_loops
    return measure(matrix, rows, parts.correction)


def _by_loops(matrix: Tensor, rows: Tensor, correction: Tensor | None) -> PartProducts:
    loops = outcome_loops_for(rows)
    assert loops is not None
    clients, outcomes = len(matrix), len(rows) // len(matrix)
    ranges, side = len(column_ranges(rows.shape[1])), -(-len(rows) // TILE) * TILE
    products = torch.zeros(ranges, 2, side, side, dtype=torch.float64)
    squares = torch.zeros(ranges, 2 + outcomes, clients, dtype=torch.float64)
    besides = rows.new_empty(0, 0) if correction is None else correction.to(rows.dtype).contiguous()
    arrays = [values.numpy() for values in (matrix, rows, besides)]
    grams, sums = products.numpy(), squares.numpy()

    def work(part: int, start: int, stop: int) -> None:
        scratch = torch.zeros(side + 1, loops.scratch_columns(side), dtype=rows.dtype).numpy()
        loops.add_part_products(*arrays, scratch, grams[part, 0], grams[part, 1], sums[part], start, stop)

    for_each_range(rows.shape[1], work)
    upper = products.sum(0)[:, : len(rows), : len(rows)].triu()
    both = (upper + upper.triu(1).mT).view(2, outcomes, clients, outcomes, clients)
    plain, compressed = both.permute(0, 2, 1, 4, 3).reshape(2, len(rows), len(rows))
    total = squares.sum(0)
    lengths = total[2:].T.flatten()
    return _finished(plain, compressed, lengths, total[0], total[1])


def _finished(
    plain: Tensor, compressed: Tensor, lengths: Tensor, gaps: Tensor, squared_norms: Tensor
) -> PartProducts:
    """The measurements, with nothing but what is promised: no products between the outcomes of many."""
    clients = len(gaps)
    outcomes = len(lengths) // max(1, clients)
    if outcomes != 2:
        outcome = torch.arange(len(lengths)) % max(1, outcomes)
        compressed = torch.where(outcome[:, None] == outcome[None, :], compressed, 0.0)
        plain = torch.zeros_like(plain)
    plain = plain.diagonal_scatter(lengths)
    return PartProducts(plain, compressed, gaps.sqrt(), squared_norms)


def _by_torch(matrix: Tensor, rows: Tensor, correction: Tensor | None) -> PartProducts:
    clients, columns = matrix.shape
    outcomes = len(rows) // max(1, clients)
    products = torch.zeros(2, len(rows), len(rows), dtype=torch.float64)
    compressed = products[1].view(clients, outcomes, clients, outcomes)
    squares = torch.zeros(2, clients, dtype=torch.float64)
    lengths = torch.zeros(len(rows), dtype=torch.float64)
    roots = rows.new_empty(len(rows), min(CHUNK, columns))
    for first in range(0, columns, CHUNK):
        block, whole = rows[:, first : first + CHUNK], matrix[:, first : first + CHUNK]
        gap = block.view(clients, -1, block.shape[1]).sum(1).sub_(whole)
        if correction is not None:
            gap.add_(correction[:, first : first + CHUNK])
        for total, values in ((squares[0], gap), (squares[1], whole), (lengths, block)):
            total += torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).square().cpu()
        root = torch.abs(block, out=roots[:, : block.shape[1]]).sqrt_().copysign_(block)
        if outcomes == 2:
            products[0] += (block @ block.T).double().cpu()
            products[1] += (root @ root.T).double().cpu()
        else:
            own = root.view(clients, outcomes, -1).transpose(0, 1)
            within = torch.bmm(own, own.mT).double().cpu()
            for outcome in range(outcomes):
                compressed[:, outcome, :, outcome] += within[outcome]
    return _finished(products[0], products[1], lengths, squares[0], squares[1])
