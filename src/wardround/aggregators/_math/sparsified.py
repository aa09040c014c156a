"""Tensors of which only the largest magnitudes count: the least magnitude kept, what is left, its weighted sum.

A model's tensors are cut into pieces of columns, fixed by the model alone, so that neither the number of
threads changes a result nor the sparsified values ever need a second matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wardround.aggregators._math.columns import RANGE, for_each
from wardround.aggregators._math.compiled import sparse_loops_for
from wardround.aggregators._math.kernels import summing_precision

__all__ = ["Piece", "kept_statistics", "magnitude_limits", "pieces_of", "sum_kept"]

PLACES, RUN_OF_SAMPLE = 512, 16
"""A row's sample: so many places, and so many values (a line of the cache) at each."""
MARGIN = 0.03
"""The limit is looked for among this share of the values to either side of where the sample puts it."""


class Piece(NamedTuple):
    """Some columns of one tensor."""

    tensor: int
    start: int
    stop: int


def pieces_of(columns: Sequence[slice]) -> list[Piece]:
    """The tensors that lie in these columns, in pieces.

    >>> [tuple(piece) for piece in pieces_of([slice(0, 40_000), slice(40_000, 40_010)])]
    [(0, 0, 32768), (0, 32768, 40000), (1, 40000, 40010)]
    """
    return [
        Piece(number, start, min(start + RANGE, tensor.stop))
        for number, tensor in enumerate(columns)
        for start in range(tensor.start, tensor.stop, RANGE)
    ]


def magnitude_limits(matrix: Tensor, pieces: Sequence[Piece], keep: int) -> Tensor:
    """Find the `keep`-th largest magnitude of every row in these pieces together.

    Args:
        matrix: N × D rows.
        pieces: Columns that count, all of one tensor.
        keep: How many values are kept.

    Returns:
        N magnitudes.

    >>> magnitude_limits(torch.tensor([[1.0, -5.0, 3.0, 2.0]]), [Piece(0, 0, 4)], 2)
    tensor([3.])
    """
    total = sum(piece.stop - piece.start for piece in pieces)
    loops = sparse_loops_for(matrix)
    if keep == total:
        return matrix.new_zeros(len(matrix))
    if keep == 0:
        return matrix.new_full((len(matrix),), torch.inf)
    lines = sum((piece.stop - piece.start) // RUN_OF_SAMPLE for piece in pieces)
    if loops is None or lines < 16 * PLACES:  # too few for a sample to save work
        return torch.stack([_limit_of_row(row, pieces, keep) for row in matrix])
    rank = total - keep  # the limit's place in ascending order
    low, high = _bracket(matrix, pieces, rank / total)
    below = torch.zeros(len(pieces), len(matrix), dtype=torch.int64)
    near: list[list[Tensor]] = [[] for _ in pieces]
    rows, arrays, counts = matrix.numpy(), (low.numpy(), high.numpy()), below.numpy()

    def collect(number: int) -> None:
        _, start, stop = pieces[number]
        space = torch.empty(len(matrix), stop - start, dtype=matrix.dtype)
        collected = loops.collect_near(rows, *arrays, counts[number], space.numpy(), start, stop)
        near[number] = [
            values[:count].clone() for values, count in zip(space, collected.tolist(), strict=True)
        ]

    for_each(range(len(pieces)), collect)
    limits = matrix.new_empty(len(matrix))
    for i, under in enumerate(below.sum(0).tolist()):
        values = torch.cat([piece[i] for piece in near]).numpy()
        if under <= rank < under + len(values):
            values.partition(rank - under)
            limits[i] = float(values[rank - under])
        else:  # the sample was not like the row
            limits[i] = _limit_of_row(matrix[i], pieces, keep)
    return limits


def _bracket(matrix: Tensor, pieces: Sequence[Piece], share: float) -> tuple[Tensor, Tensor]:
    """Two magnitudes per row between which the one at this share of the values probably lies."""
    lines = [p for p in pieces if p.stop - p.start >= RUN_OF_SAMPLE]
    columns = torch.cat([torch.arange(p.start, p.stop - RUN_OF_SAMPLE + 1, RUN_OF_SAMPLE) for p in lines])
    places = columns[torch.linspace(0, len(columns) - 1, PLACES).long()]
    sample = matrix[:, (places[:, None] + torch.arange(RUN_OF_SAMPLE)).flatten()].abs().numpy()
    ordered = torch.from_numpy(np.sort(sample, axis=1))
    last = ordered.shape[1] - 1
    places_of = [round(min(max(share + margin, 0), 1) * last) for margin in (-MARGIN, MARGIN)]
    return ordered[:, places_of[0]].contiguous(), ordered[:, places_of[1]].contiguous()


def _limit_of_row(row: Tensor, pieces: Sequence[Piece], keep: int) -> Tensor:
    magnitudes = torch.cat([row[start:stop] for _, start, stop in pieces]).abs_().cpu().numpy()
    rank = len(magnitudes) - keep
    magnitudes.partition(rank)  # in place: kthvalue would need several times the row
    return torch.tensor(magnitudes[rank], dtype=row.dtype)


def kept_statistics(matrix: Tensor, pieces: Sequence[Piece], limits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summarise what is kept of every tensor and client.

    Args:
        matrix: N × D rows.
        pieces: All columns, in pieces of the T tensors.
        limits: T × N, the least magnitude that is kept.

    Returns:
        T × N each: Σx², how many x > 0, how many x < 0.
    """
    counted = torch.zeros(3, len(pieces), len(matrix), dtype=torch.float64)
    loops = sparse_loops_for(matrix)
    if loops is not None:
        rows, least, sums = matrix.numpy(), limits.numpy(), counted.numpy()

        def count(number: int) -> None:
            tensor, start, stop = pieces[number]
            loops.add_kept_statistics(rows, least[tensor], *sums[:, number], start, stop)

        for_each(range(len(pieces)), count)
    else:
        for number, (tensor, start, stop) in enumerate(pieces):
            kept = _kept(matrix[:, start:stop], limits[tensor])
            counted[0, number] = kept.double().square().sum(1).cpu()
            counted[1, number] = (kept > 0).sum(1).cpu()
            counted[2, number] = (kept < 0).sum(1).cpu()
    owners = torch.tensor([piece.tensor for piece in pieces], dtype=torch.long)
    totals = torch.zeros(3, len(limits), len(matrix), dtype=torch.float64).index_add_(1, owners, counted)
    return totals[0], totals[1], totals[2]


def sum_kept(matrix: Tensor, pieces: Sequence[Piece], limits: Tensor, weights: Tensor) -> Tensor:
    """Compute Σ_i weight_i · what is kept of row i.

    Args:
        matrix: N × D rows.
        pieces: All columns, in pieces of the T tensors.
        limits: T × N, the least magnitude that is kept.
        weights: T × N.

    Returns:
        D values.
    """
    out = matrix.new_empty(matrix.shape[1])
    weights = weights.to(matrix.device, summing_precision(matrix, weights))
    loops = sparse_loops_for(matrix)
    if loops is not None:
        rows, least, shares, target = matrix.numpy(), limits.numpy(), weights.numpy(), out.numpy()

        def add(number: int) -> None:
            tensor, start, stop = pieces[number]
            loops.sum_kept(rows, least[tensor], shares[tensor], target, start, stop)

        for_each(range(len(pieces)), add)
    else:
        for tensor, start, stop in pieces:
            kept = _kept(matrix[:, start:stop], limits[tensor]).to(weights.dtype)
            out[start:stop] = weights[tensor] @ kept
    return out


def _kept(values: Tensor, limits: Tensor) -> Tensor:
    return torch.where(values.abs() >= limits[:, None], values, 0.0)
