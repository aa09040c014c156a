"""The matrix work that rules share: weighted sums, dot products, Gram matrices, distances.

Whatever sums over the D coordinates accumulates in float64. Each function has two ways to the same result:
compiled loops, and torch where those do not apply. Both walk fixed column ranges, so that neither the
number of threads nor the size of the model changes a result or needs a second matrix.

Between two compiled passes a rule should not let torch start its own threads on D-sized vectors: they go on
spinning for milliseconds after their work is done, on the cores that the next pass needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators.columns import column_ranges, for_each_range
from wardround.aggregators.compiled import TILE, loops_for
from wardround.aggregators.order_statistics import median
from wardround.updates import Updates, row_squared_norms

__all__ = [
    "CentredGram",
    "centred_gram",
    "norm",
    "row_dots",
    "squared_distances",
    "squared_norms",
    "weighted_sum",
]

SMALL = 65_536
"""Up to so many columns the Gram matrix is computed in float64 throughout: exactness costs nothing there."""
IN_CACHE = 8_192
"""Columns whose median is taken just before their products, while they are in the cache."""
CLOSE = {torch.float32: 1e-3, torch.float64: 1e-11}
"""A squared distance below this share of the rows' own squared norms has lost digits to cancellation."""


def weighted_sum(matrix: Tensor, weights: Tensor) -> Tensor:
    """Σ_i weight_i · U_i: one pass over the matrix, in its own precision.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 0.5]))
    tensor([2., 3.])
    """
    tiny = (weights != 0) & (weights.abs() < 1e-30)  # would not survive float32
    precision = torch.float64 if bool(tiny.any()) else matrix.dtype
    weights = weights.to(matrix.device, precision)
    loops = loops_for(matrix)
    if loops is None:
        parts = [weights @ matrix[:, a:b].to(precision) for a, b in column_ranges(matrix.shape[1])]
        return torch.cat(parts).to(matrix.dtype) if parts else matrix.new_empty(0)
    out = matrix.new_empty(matrix.shape[1])
    arrays = matrix.numpy(), weights.numpy(), out.numpy()
    for_each_range(matrix.shape[1], lambda _, a, b: loops.sum_rows(*arrays, a, b))
    return out


def squared_norms(matrix: Tensor) -> Tensor:
    """‖U_i‖² of every row, in float64; not finite where a row is not, or is too long for float64.

    >>> squared_norms(torch.tensor([[3.0, 4.0], [1.0, torch.nan]]))
    tensor([25., nan], dtype=torch.float64)
    """
    loops = loops_for(matrix)
    if loops is None:
        return row_squared_norms(matrix).cpu()
    totals = torch.zeros(len(column_ranges(matrix.shape[1])), len(matrix), dtype=torch.float64)
    rows, out = matrix.numpy(), totals.numpy()
    for_each_range(matrix.shape[1], lambda part, a, b: loops.add_squared_norms(rows, out[part], a, b))
    return totals.sum(0)


def norm(vector: Tensor) -> float:
    """‖v‖ in float64."""
    return float(squared_norms(vector[None]).sqrt())


def row_dots(matrix: Tensor, vector: Tensor) -> Tensor:
    """⟨U_i, v⟩ for every row, in float64.

    >>> row_dots(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, -1.0]))
    tensor([-1., -1.], dtype=torch.float64)
    """
    ranges = column_ranges(matrix.shape[1])
    totals = torch.zeros(len(ranges), len(matrix), dtype=torch.float64)
    loops = loops_for(matrix)
    if loops is not None:
        rows, v, out = matrix.numpy(), vector.to(matrix.dtype).numpy(), totals.numpy()
        for_each_range(matrix.shape[1], lambda part, a, b: loops.add_row_dots(rows, v, out[part], a, b))
    else:
        for part, (a, b) in enumerate(ranges):
            totals[part] = (matrix[:, a:b].double() * vector[a:b].double()).sum(1)
    return totals.sum(0)


@dataclass(frozen=True)
class CentredGram:
    """All inner products of the rows about a point: the round in N dimensions instead of D.

    A combination z = centre + Σ a_i (U_i − centre) is known by its coefficients `a` alone, and
    ‖U_i − z‖² = aᵀGa − 2(Ga)_i + G_ii. About a robust centre the honest rows are short, so that this does
    not cancel however long an attacker's row is.
    """

    centre: Tensor
    gram: Tensor
    projections: Tensor
    """⟨U_i − centre, anchor + centre⟩ where an anchor was given: the rows seen from the weights they change."""
    base_squared: float
    """‖anchor + centre‖², where an anchor was given."""

    def squared_distances_to(self, coefficients: Tensor) -> Tensor:
        """‖U_i − z‖² for every row i, of the point z with these coefficients."""
        image = self.gram @ coefficients
        return (coefficients @ image - 2 * image + self.gram.diagonal()).clamp(min=0)


def centred_gram(updates: Updates, centre: Tensor | None = None, anchor: Tensor | None = None) -> CentredGram:
    """(U − c)(U − c)ᵀ in float64 about `centre`, by default the coordinate-wise median.

    Products are taken in the matrix's precision and summed in float64, block by block: the rounding errors
    of the blocks are independent and average out. Rows whose squares do not fit float32 are done in float64.
    """
    matrix = updates.matrix
    n, d = matrix.shape
    side = -(-n // TILE) * TILE
    ranges = column_ranges(d)
    products = torch.zeros(len(ranges), side, side, dtype=torch.float64)
    projections = torch.zeros(len(ranges), n + 1, dtype=torch.float64)
    loops = loops_for(matrix)
    if loops is None:
        centre = median(matrix) if centre is None else centre.to(matrix.dtype)
        for part, (a, b) in enumerate(ranges):
            origin = centre[a:b].double()
            wide = matrix[:, a:b].double() - origin
            products[part, :n, :n] = _products(wide)
            if anchor is not None:
                base = anchor[a:b].double() + origin
                projections[part] = (torch.cat([wide, base[None]]) * base).sum(1)
    else:
        find_median = loops.middle_kernel(n, (n - 1) // 2, n // 2) if centre is None else None
        centre = matrix.new_empty(d) if centre is None else centre.to(matrix.dtype)
        precision = matrix.dtype if d > SMALL and _fits_float32(updates) else torch.float64
        rows, everyone, origins = matrix.numpy(), torch.arange(n).numpy(), centre.numpy()
        weights = None if anchor is None else anchor.to(matrix.dtype).numpy()
        grams, dots = products.numpy(), projections.numpy()

        def work(part: int, start: int, stop: int) -> None:
            scratch = torch.zeros(side, loops.SCRATCH_COLUMNS, dtype=precision).numpy()
            for a in range(start, stop, IN_CACHE):
                b = min(a + IN_CACHE, stop)
                if find_median is not None:
                    find_median(rows, everyone, origins, a, b)
                loops.add_gram(rows, origins, scratch, grams[part], a, b)
                if weights is not None:
                    loops.add_projections(rows, origins, weights, dots[part], a, b)

        for_each_range(d, work)
    upper = products.sum(0)[:n, :n].triu()
    seen = projections.sum(0)
    return CentredGram(centre, upper + upper.triu(1).T, seen[:n], float(seen[n]))


def _products(rows: Tensor, block: int = 512) -> Tensor:
    """rows · rowsᵀ as a batch of short products, none of which is long enough to be split among threads."""
    n, columns = rows.shape
    whole = columns - columns % block
    blocks = rows[:, :whole].view(n, -1, block).transpose(0, 1)
    rest = rows[None, :, whole:]
    return torch.bmm(blocks, blocks.mT).sum(0) + torch.bmm(rest, rest.mT)[0]


def squared_distances(updates: Updates, geometry: CentredGram | None = None) -> Tensor:
    """‖U_i − U_j‖² for all pairs, in float64.

    From the centred Gram matrix; pairs so close together that it has lost their digits (colluders who send
    nearly the same, far from the rest) are measured again, directly.
    """
    gram = (geometry or centred_gram(updates)).gram
    own = gram.diagonal()
    squared = (own[:, None] + own[None, :] - 2 * gram).clamp(min=0)
    close = squared < CLOSE[updates.matrix.dtype] * torch.maximum(own[:, None], own[None, :])
    pairs = close.triu(1).nonzero()
    if len(pairs):
        i, j = pairs.T
        squared[i, j] = squared[j, i] = _pair_distances(updates.matrix, pairs)
    return squared.fill_diagonal_(0)


def _pair_distances(matrix: Tensor, pairs: Tensor) -> Tensor:
    ranges = column_ranges(matrix.shape[1])
    totals = torch.zeros(len(ranges), len(pairs), dtype=torch.float64)
    loops = loops_for(matrix)
    if loops is not None:
        rows, indices, out = matrix.numpy(), pairs.numpy(), totals.numpy()
        for_each_range(
            matrix.shape[1], lambda part, a, b: loops.add_pair_distances(rows, indices, out[part], a, b)
        )
    else:
        for part, (a, b) in enumerate(ranges):
            for k, (i, j) in enumerate(pairs.tolist()):
                totals[part, k] = (matrix[i, a:b].double() - matrix[j, a:b].double()).square().sum()
    return totals.sum(0)


def _fits_float32(updates: Updates) -> bool:
    """No row so long or short that products of its values would leave float32's range."""
    squared = updates.squared_norms
    present = squared[squared > 0]
    return bool(((present > 1e-20 * updates.dimension) & (present < 1e30)).all())
