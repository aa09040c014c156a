"""The matrix work that rules share: weighted sums, dot products, Gram matrices, distances.

A matrix has N rows (clients) and D columns (parameters), in float32 or float64. Whatever sums over the D coordinates
accumulates in float64. Each function has two ways to the same result: compiled loops, and torch where those do not
apply. Both walk fixed column ranges, so that neither the number of threads nor the size of the model changes a
result or needs a second matrix.

Between two compiled passes a rule should not let torch start its own threads on D-sized vectors: they keep spinning
for milliseconds after their work is done, on the cores that the next pass needs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.columns import RANGE, column_ranges, for_each_range
from wardround.aggregators._math.compiled import TILE, loops_for
from wardround.aggregators._math.order_statistics import median
from wardround.updates import Updates, row_squared_norms

__all__ = [
    "CentredGram",
    "centred_gram",
    "distances_and_replace",
    "dots_with_two",
    "norm",
    "norms_and_dots",
    "norms_and_gram",
    "row_dots",
    "squared_distances",
    "squared_norms",
    "summing_precision",
    "weighted_sum",
]

SMALL, FEW_PRODUCTS = 65_536, 2**30
"""Up to so many columns, and multiplications, the Gram matrix is computed in float64 throughout: that costs little."""
BLOCK, BLOCK_PRODUCTS = 1024, 2**17
"""Columns whose products torch sums in the matrix's precision, and values of several such sums made at a time."""
SAMPLE = 9
"""So many rows, spread over the round, give the centre of the Gram matrix in the usual case."""
CLOSE = {torch.float32: 1e-2, torch.float64: 1e-11}
"""A squared distance below this share of the rows' own squared norms has lost digits to cancellation."""
OFF_CENTRE = 0.05
"""If most rows have a neighbour nearer than this share of the squared way to the centre, it is not among them."""

WIDENED = 2**18
"""Values that torch makes float64 at a time: two megabytes."""


def weighted_sum(matrix: Tensor, weights: Tensor, in_float64: bool = False) -> Tensor:
    """Compute Σ_i weight_i · U_i in one pass over the matrix.

    Args:
        matrix: N × D rows.
        weights: N values.
        in_float64: Sum in float64 whatever the matrix is in: for terms that cancel.

    Returns:
        D values, in the precision of the matrix.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 0.5]))
    tensor([2., 3.])
    """
    precision = torch.float64 if in_float64 else summing_precision(matrix, weights)
    weights = weights.to(matrix.device, precision)
    loops = loops_for(matrix)
    if loops is None:
        parts = [weights @ matrix[:, a:b].to(precision) for a, b in column_ranges(matrix.shape[1])]
        return torch.cat(parts).to(matrix.dtype) if parts else matrix.new_empty(0)
    out = matrix.new_empty(matrix.shape[1])
    arrays = matrix.numpy(), weights.numpy(), out.numpy()
    for_each_range(matrix.shape[1], lambda _, a, b: loops.sum_rows(*arrays, a, b))
    return out


def summing_precision(matrix: Tensor, weights: Tensor) -> torch.dtype:
    """The matrix's own precision, unless a weight is so small that it would not survive float32."""
    tiny = (weights != 0) & (weights.abs() < 1e-30)
    return torch.float64 if bool(tiny.any()) else matrix.dtype


def squared_norms(matrix: Tensor) -> Tensor:
    """Compute ‖U_i‖² of every row.

    Args:
        matrix: N × D rows, which need not be finite.

    Returns:
        N values in float64; not finite where a row is not, or is too long for float64.

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
    """‖v‖ of a vector of D values, summed in float64."""
    return float(squared_norms(vector[None]).sqrt())


def norms_and_dots(matrix: Tensor, vector: Tensor) -> tuple[Tensor, Tensor, float]:
    """Compute ‖U_i‖² and ⟨U_i, v⟩ of every row, and ‖v‖², in one read of the matrix.

    Args:
        matrix: N × D rows.
        vector: v, D values.

    Returns:
        N squared norms and N dot products in float64, and ‖v‖².

    >>> norms_and_dots(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0.0, -1.0]))
    (tensor([25.,  4.], dtype=torch.float64), tensor([-4., -2.], dtype=torch.float64), 1.0)
    """
    n, d = matrix.shape
    if vector.shape != (d,):
        raise ValueError(
            f"a vector of shape {tuple(vector.shape)} has no dot product with rows of length {d}"
        )
    ranges = column_ranges(d)
    squared = torch.zeros(max(1, len(ranges)), n + 1, dtype=torch.float64)
    dots = torch.zeros(max(1, len(ranges)), n, dtype=torch.float64)
    loops = loops_for(matrix)
    if loops is not None:
        rows, v = matrix.numpy(), vector.to(matrix.dtype).numpy()
        norms_out, dots_out = squared.numpy(), dots.numpy()
        for_each_range(
            d, lambda part, a, b: loops.add_norms_and_dots(rows, v, norms_out[part], dots_out[part], a, b)
        )
    else:
        own = vector.to(matrix.dtype)
        squared[0, :n], squared[0, n] = row_squared_norms(matrix).cpu(), row_squared_norms(own[None]).cpu()[0]
        for part, (a, b) in enumerate(ranges):
            dots[part] = _dots(matrix[:, a:b], own[a:b]).cpu()
    total = squared.sum(0)
    return total[:n], dots.sum(0), float(total[n])


def row_dots(matrix: Tensor, vector: Tensor) -> Tensor:
    """⟨U_i, v⟩ of N × D rows with a vector of D values: N values in float64.

    >>> row_dots(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, -1.0]))
    tensor([-1., -1.], dtype=torch.float64)
    """
    return norms_and_dots(matrix, vector)[1]


def dots_with_two(matrix: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """⟨U_i, v⟩ and ⟨U_i, w⟩ of N × D rows with two vectors of D values, in one read: N values each, in float64.

    >>> dots_with_two(torch.tensor([[1.0, 2.0]]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    (tensor([1.], dtype=torch.float64), tensor([2.], dtype=torch.float64))
    """
    d, loops = matrix.shape[1], loops_for(matrix)
    if loops is None:
        return row_dots(matrix, first), row_dots(matrix, second)
    dots = torch.zeros(len(column_ranges(d)), 2, len(matrix), dtype=torch.float64)
    arrays = matrix.numpy(), first.to(matrix.dtype).numpy(), second.to(matrix.dtype).numpy()
    parts = dots.numpy()
    for_each_range(d, lambda part, a, b: loops.add_dots_with_two(*arrays, parts[part], a, b))
    both = dots.sum(0)
    return both[0], both[1]


@dataclass(frozen=True)
class CentredGram:
    """All inner products of N rows about a point: the round in N dimensions instead of D.

    A combination z = centre + Σ a_i (U_i − centre) is known by its coefficients `a` alone, and
    ‖U_i − z‖² = aᵀGa − 2(Ga)_i + G_ii. About a robust centre the honest rows are short, so that this does
    not cancel however long an attacker's row is.
    """

    centre: Tensor
    """D values."""
    gram: Tensor
    """N × N: ⟨U_i − centre, U_j − centre⟩, float64."""
    projections: Tensor
    """N values ⟨U_i − centre, anchor + centre⟩ (0 without an anchor): the rows seen from the weights they change."""
    base_squared: float
    """‖anchor + centre‖² (0 without an anchor)."""

    def squared_distances_to(self, coefficients: Tensor) -> Tensor:
        """N values ‖U_i − z‖², of the point z with these N coefficients."""
        image = self.gram @ coefficients
        return (coefficients @ image - 2 * image + self.gram.diagonal()).clamp(min=0)

    @property
    def between(self) -> Tensor:
        """N × N: ‖U_i − U_j‖² for all pairs, as far as the products have kept their digits."""
        own = self.gram.diagonal()
        return (own[:, None] + own[None, :] - 2 * self.gram).clamp(min=0).fill_diagonal_(0)

    def closer_than(self, share: float) -> Tensor:
        """N × N booleans: which pairs lie nearer to each other than this share of the way to the centre, squared."""
        own = self.gram.diagonal()
        close = self.between < share * torch.maximum(own[:, None], own[None, :])
        return close.fill_diagonal_(False)


def centred_gram(updates: Updates, centre: Tensor | None = None, anchor: Tensor | None = None) -> CentredGram:
    """Compute (U − c)(U − c)ᵀ of finite rows, about `centre` or a robust centre of their own.

    Products are taken in the matrix's precision and summed in float64, block by block: the rounding errors
    of the blocks are independent and average out. Rows whose squares do not fit float32 are done in float64.

    The rows' own centre is the coordinate-wise median of some of them, which costs a fraction of the median
    of all. Should attackers have the majority among those few, most rows lie far from it and near each other:
    then it is the median of all.

    Args:
        updates: N rows of D values, all finite.
        centre: c, D values; None: the rows' own centre.
        anchor: D values to project the rows on (see `CentredGram.projections`), usually the global weights.
    """
    geometry = norms_and_gram(updates.matrix, centre, anchor)[1]
    if geometry is None:
        raise ValueError("rows that are not finite have no distances: call drop_malformed first")
    return geometry


def norms_and_gram(
    matrix: Tensor, centre: Tensor | None = None, anchor: Tensor | None = None
) -> tuple[Tensor, CentredGram | None]:
    """Compute ‖U_i‖² and the centred Gram matrix in one read of the matrix.

    Args:
        matrix: N × D rows, which need not be finite.
        centre: As for `centred_gram`.
        anchor: As for `centred_gram`.

    Returns:
        N squared norms in float64, and the Gram matrix; None in its place where a row is not finite.
    """
    n, d = matrix.shape
    for name, vector in (("centre", centre), ("anchor", anchor)):
        if vector is not None and vector.shape != (d,):
            raise ValueError(f"{name} has shape {tuple(vector.shape)}, the rows are of length {d}")
    few = d <= SMALL and n * n * d <= FEW_PRODUCTS
    precision = torch.float64 if few else matrix.dtype
    sample = torch.arange(n) if n <= SAMPLE else torch.linspace(0, n - 1, SAMPLE).round().long()
    measure = _gram_by_torch if loops_for(matrix) is None else _gram_by_loops
    squared, geometry = measure(matrix, sample, centre, anchor, precision)
    if precision == torch.float32 and not _fit_float32(squared, d):
        squared = squared_norms(matrix)  # what float32 says of such rows is not to be trusted
        if bool(squared.isfinite().all()) and not _fit_float32(squared[squared > 0], d):
            precision = torch.float64
            squared, geometry = measure(matrix, sample, centre, anchor, precision)
    if not bool(squared.isfinite().all()):
        return squared, None
    if centre is None and len(sample) < n:
        adrift = geometry.closer_than(OFF_CENTRE).any(1)
        if int(adrift.sum()) > n / 2:
            geometry = measure(matrix, torch.arange(n), centre, anchor, precision)[1]
    return squared, geometry


def _gram_by_loops(
    matrix: Tensor, sample: Tensor, centre: Tensor | None, anchor: Tensor | None, precision: torch.dtype
) -> tuple[Tensor, CentredGram]:
    n, d = matrix.shape
    loops = loops_for(matrix)
    assert loops is not None
    if centre is None and len(sample) > SAMPLE:
        centre = median(matrix)
    kernel = loops.gram_kernel(len(sample) if centre is None else 0)
    centre = matrix.new_empty(d) if centre is None else centre.to(matrix.dtype)
    ranges, side = len(column_ranges(d)), -(-n // TILE) * TILE
    products = torch.zeros(ranges, side, side, dtype=torch.float64)
    squared = torch.zeros(ranges, n, dtype=torch.float64)
    projections = torch.zeros(ranges, n + 1, dtype=torch.float64)
    weights = matrix.new_empty(0) if anchor is None else anchor.to(matrix.dtype)
    arrays = [values.numpy() for values in (matrix, sample, centre, weights)]
    sums = [values.numpy() for values in (products, squared, projections)]

    own = threading.local()

    def work(part: int, start: int, stop: int) -> None:
        if not hasattr(own, "scratch"):  # of each thread
            own.scratch = torch.zeros(side + 1, loops.scratch_columns(side), dtype=precision).numpy()
        kernel(*arrays, own.scratch, *(values[part] for values in sums), start, stop)

    for_each_range(d, work)
    upper = products.sum(0)[:n, :n].triu()
    seen = projections.sum(0)
    return squared.sum(0), CentredGram(centre, upper + upper.triu(1).T, seen[:n], float(seen[n]))


def _gram_by_torch(
    matrix: Tensor, sample: Tensor, centre: Tensor | None, anchor: Tensor | None, precision: torch.dtype
) -> tuple[Tensor, CentredGram]:
    n, d = matrix.shape
    squared = row_squared_norms(matrix).cpu()
    if centre is None:
        centre = median(matrix if len(sample) == n else matrix[sample])
    centre = centre.to(matrix.dtype)
    gram = torch.zeros(n, n, dtype=torch.float64)
    projections = torch.zeros(n + 1, dtype=torch.float64)
    width = BLOCK * max(1, min(BLOCK_PRODUCTS // n**2, RANGE // BLOCK))
    for a in range(0, d, width):
        origin = centre[a : a + width].to(precision)
        rows = matrix[:, a : a + width].to(precision) - origin
        gram += _products(rows).cpu()
        if anchor is not None:
            base = anchor[a : a + width].to(precision) + origin
            projections[:n] += _dots(rows, base).cpu()
            projections[n] += _dots(base[None], base).cpu()[0]
    upper = gram.triu()
    return squared, CentredGram(centre, upper + upper.triu(1).T, projections[:n], float(projections[n]))


def _dots(rows: Tensor, vector: Tensor) -> Tensor:
    """⟨U_i, v⟩ of N × some values, in float64: some columns at a time are widened, in the cache."""
    n, columns = rows.shape
    width, wide_vector = max(1, WIDENED // max(1, n)), vector.double()
    wide = torch.empty(n * min(width, columns), dtype=torch.float64, device=rows.device)
    total = torch.zeros(n, dtype=torch.float64, device=rows.device)
    for a in range(0, columns, width):
        block = rows[:, a : a + width]
        total += wide[: block.numel()].view_as(block).copy_(block) @ wide_vector[a : a + width]
    return total


def _products(rows: Tensor) -> Tensor:
    """rows · rowsᵀ as a batch of short products, none of which is long enough to be split among threads."""
    n, columns = rows.shape
    whole = columns - columns % BLOCK
    blocks = rows[:, :whole].view(n, -1, BLOCK).transpose(0, 1)
    rest = rows[:, whole:]
    return torch.bmm(blocks, blocks.mT).sum(0, dtype=torch.float64) + rest @ rest.T


def squared_distances(updates: Updates, geometry: CentredGram | None = None) -> Tensor:
    """Compute ‖U_i − U_j‖² for all pairs.

    From the centred Gram matrix; pairs so close together that it has lost their digits (colluders who send
    nearly the same, far from the rest) are measured again, directly.

    Args:
        updates: N rows, all finite.
        geometry: Their Gram matrix, where it is known already.

    Returns:
        N × N squared distances in float64.
    """
    geometry = geometry or centred_gram(updates)
    squared = geometry.between
    pairs = geometry.closer_than(CLOSE[updates.dtype]).triu(1).nonzero()
    if len(pairs):
        i, j = pairs.T
        squared[i, j] = squared[j, i] = _pair_distances(updates.matrix, pairs)
    return squared


def distances_and_replace(
    past: Tensor, matrix: Tensor, step: Tensor | None, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute ‖U_i − (P_i + e)‖² and Σ_i weight_i · U_i, and put U in the place of P, in one pass over both.

    Args:
        past: P, N × D rows; overwritten.
        matrix: U, N × D rows.
        step: e, D values; None: no distances.
        weights: N values.

    Returns:
        N squared distances in float64, zeros without a step, and the D values of `weighted_sum`, to the bit.
    """
    n, d = matrix.shape
    ranges, loops = column_ranges(d), loops_for(matrix)
    totals = torch.zeros(len(ranges), n, dtype=torch.float64)
    precision = summing_precision(matrix, weights)
    if step is not None and loops is not None and loops_for(past) is not None:
        total = matrix.new_empty(d)
        arrays = past.numpy(), matrix.numpy(), step.to(matrix.dtype).numpy(), weights.to(precision).numpy()
        sums, out = totals.numpy(), total.numpy()
        for_each_range(d, lambda part, a, b: loops.add_distances_and_replace(*arrays, sums[part], out, a, b))
        return totals.sum(0), total
    if step is not None:
        width = max(1, WIDENED // n)
        for part, (start, stop) in enumerate(ranges):
            for a in range(start, stop, width):
                b = min(a + width, stop)
                apart = matrix[:, a:b].double().sub_(past[:, a:b]).sub_(step[a:b].to(matrix.device))
                totals[part] += torch.linalg.vector_norm(apart, dim=1).square().cpu()
    past.copy_(matrix)
    return totals.sum(0), weighted_sum(matrix, weights)


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


def _fit_float32(squared_norms: Tensor, dimension: int) -> bool:
    """No row so long or short that products of its values would leave float32's range."""
    return bool(((squared_norms > 1e-20 * dimension) & (squared_norms < 1e30)).all())
