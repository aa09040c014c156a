"""The six fingerprints of an update, and the form in which networks see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD
from wardround.aggregators._math.projection import Projection
from wardround.threads import one_thread

__all__ = ["FEATURES", "Geometry", "central_rows", "measure", "measure_changed", "standardised"]

FEATURES = ("vae_error", "cosine", "peer_cosine", "norm", "sign_consistency", "shapley")
"""The six, in their order."""
ERROR, NORM = 0, 3
RATIOS = (ERROR, NORM)
"""Features that are compared by ratio (reconstruction error, norm): their logarithm is standardised."""
FLOORS = (0.05, 0.02, 0.02, 0.05, 0.005, 2e-4)
"""The least spread of each feature: what differs by less among honest clients is not worth a suspicion."""
STRAIGHT = 3.0
"""Up to so many spreads from the middle differences count linearly; beyond, only orders of magnitude do."""
TINY = 1e-30
MOST_SAMPLES = 1e9
"""A client may claim more, but counts as this."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """What one pass over the updates gives: four of the six fingerprints, and short forms of the rows."""

    gram: Tensor
    """N × N: ⟨g_k, g_j⟩."""
    dots: Tensor
    """N: ⟨g_k, g_ref⟩."""
    reference_norm: float
    """‖g_ref‖₂."""
    sign_consistency: Tensor
    """N: the share of coordinates whose sign is g_ref's."""
    projected: Tensor
    """N × d: the updates, projected where they are long."""

    @property
    def norm(self) -> Tensor:
        """N: ‖g_k‖₂."""
        return self.gram.diagonal().sqrt()

    @property
    def cosine(self) -> Tensor:
        """N: cos(g_k, g_ref); 0 where either is zero."""
        if self.reference_norm == 0:
            return torch.zeros_like(self.dots)
        return self.dots * _inverse(self.norm) / self.reference_norm

    @property
    def peer_cosine(self) -> Tensor:
        """N: mean of cos(g_k, g_j) over the others; 0 where there are none."""
        unit = _inverse(self.norm)
        cosines = self.gram * unit[:, None] * unit[None, :]
        return (cosines.sum(1) - cosines.diagonal()) / max(len(cosines) - 1, 1)

    @property
    def consensus(self) -> float:
        """How far the round agrees: the mean cosine over all pairs."""
        return float(self.peer_cosine.mean())

    def table(self, vae_error: Tensor, shapley: Tensor) -> Tensor:
        """N × 6, the columns in the order of `FEATURES`."""
        return torch.stack(
            [vae_error, self.cosine, self.peer_cosine, self.norm, self.sign_consistency, shapley], 1
        ).double()


def measure(
    matrix: Tensor,
    reference: Tensor | None = None,
    projection: Projection | None = None,
    rows: Sequence[int] | None = None,
) -> Geometry:
    r"""Norms, cosines, sign consistency and short forms of some rows (default: all), in one pass.

    .. math:: \cos(g_k, g_{ref}), \quad \frac{1}{N-1}\sum_{j\ne k}\cos(g_k, g_j), \quad \|g_k\|_2, \quad
        \frac1D\,|\{i : \mathrm{sign}\,g_{k,i} = \mathrm{sign}\,g_{ref,i}\}|

    Without a `reference` it is the coordinate-wise median of the rows. The matrix is read range by range, sums
    are kept in float64: no second matrix is made.

    >>> seen = measure(torch.tensor([[3.0, 4.0], [3.0, 4.0], [-3.0, -4.0]]), torch.tensor([1.0, 0.0]))
    >>> seen.norm.tolist(), seen.cosine.float(), seen.sign_consistency.tolist()
    ([5.0, 5.0, 5.0], tensor([ 0.6000,  0.6000, -0.6000]), [0.5, 0.5, 0.0])
    >>> seen.peer_cosine.float()
    tensor([ 0.,  0., -1.])
    """
    index = torch.arange(len(matrix)) if rows is None else torch.tensor(list(rows), dtype=torch.long)
    return _pass(matrix, index, None, reference, projection or _no_projection(matrix))


def measure_changed(
    before: Geometry, matrix: Tensor, changed: Tensor, reference: Tensor, projection: Projection | None = None
) -> Geometry:
    """The geometry of a matrix of which `before` is known, after some rows (booleans) were replaced.

    >>> rows, reference = torch.eye(3), torch.ones(3)
    >>> before = measure(rows, reference)
    >>> rows[2] = torch.tensor([-2.0, 0.0, 0.0])
    >>> after = measure_changed(before, rows, torch.tensor([False, False, True]), reference)
    >>> bool(torch.equal(after.gram, measure(rows, reference).gram))
    True
    """
    index = changed.nonzero().flatten()
    new = _pass(matrix, index, torch.arange(len(matrix)), reference, projection or _no_projection(matrix))
    gram, dots = before.gram.clone(), before.dots.clone()
    signs, projected = before.sign_consistency.clone(), before.projected.clone()
    gram[index], gram[:, index] = new.gram, new.gram.T
    dots[index], signs[index], projected[index] = new.dots, new.sign_consistency, new.projected
    return Geometry(gram, dots, before.reference_norm, signs, projected)


def _pass(
    matrix: Tensor, index: Tensor, against: Tensor | None, reference: Tensor | None, projection: Projection
) -> Geometry:
    """One pass: the rows in `index`, and their products with those in `against` (None: with each other)."""
    n, size = len(index), matrix.shape[1]
    gram = torch.zeros(n, n if against is None else len(against), dtype=torch.float64)
    dots, agreeing = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    reference_square = 0.0
    short = projection.empty(n)
    with one_thread():
        for start in range(0, size, projection.chunk):
            columns = matrix[:, start : start + projection.chunk]
            block, others = columns[index], None if against is None else columns[against]
            if reference is None:
                ordered = block.sort(0).values
                towards = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            else:
                towards = reference[start : start + projection.chunk].to(block.dtype)
            agreeing += (block.sign() == towards.sign()).sum(1)
            if not all(_squares_fit(values) for values in (block, towards[None], others)):
                block, towards = block.double(), towards.double()
                others = None if others is None else others.double()
            gram += block @ (block if others is None else others).T
            dots += block @ towards
            reference_square += float(towards.double() @ towards.double())
            projection.add(block, start, short)
    return Geometry(gram, dots, reference_square**0.5, agreeing / max(size, 1), short.T.contiguous())


def _squares_fit(values: Tensor | None) -> bool:
    """Products of these values, summed over a range, neither leave float32 nor vanish in it."""
    if values is None or values.dtype == torch.float64 or not values.numel():
        return True
    largest = values.abs().amax(1)
    return bool(((largest == 0) | ((largest > 1e-12) & (largest < 1e15))).all())


def _inverse(norm: Tensor) -> Tensor:
    return torch.where(norm > 0, 1 / norm, 0.0)


def _no_projection(matrix: Tensor) -> Projection:
    return Projection(matrix.shape[1], matrix.shape[1], seed=0)


def standardised(table: Tensor, sizes: Tensor | None = None) -> Tensor:
    r"""N × 6 fingerprints as networks see them: how far each is from the round's own middle.

    .. math:: z = (x - \mathrm{med}) / \max(\mathrm{MAD}/0.6745,\ \mathrm{floor}), \qquad
        3\,\mathrm{arsinh}(z / 3)

    with x the logarithm for errors and norms. Updates shrink and diverge as training proceeds; measured
    against their own round they look alike in the first round and in the hundredth.

    A hospital with more samples takes more steps and goes farther. With `sizes` (samples that each client says
    it has) norms are compared with what the round's clients of that size send: x = ln‖g‖ − s·ln n, with s the
    median slope over all pairs of clients (Theil–Sen, between 0 and 1), and twice that for the squared error.
    A claim counts up to three times the round's 90 % quantile: a lie makes nobody larger than the largest may be.

    >>> table = torch.ones(5, 6, dtype=torch.float64); table[4, 3] = 10.0
    >>> seen = standardised(table)
    >>> seen[:4].abs().max().item(), round(seen[4, 3].item(), 2)
    (0.0, 10.28)
    >>> samples = torch.tensor([10.0, 20.0, 30.0, 40.0, 40.0])
    >>> table[:, 3] = samples; table[1, 3] = 40.0
    >>> standardised(table, samples)[:, 3].argmax().item()
    1
    """
    values = table.double().clone()
    for column in RATIOS:
        values[:, column] = (values[:, column] + TINY).log()
    if sizes is not None and len(values) > 2:
        size = _known_sizes(sizes)
        slope = _slope(size, values[:, NORM])
        values[:, NORM] -= slope * size
        values[:, ERROR] -= 2 * slope * size
    return _squashed(_robust_z(values))


def _known_sizes(sizes: Tensor) -> Tensor:
    """Logarithms of what clients say they have, without claims that are no number or beyond the others'."""
    counts = torch.nan_to_num(sizes.double(), nan=1.0, posinf=MOST_SAMPLES).clamp(1, MOST_SAMPLES)
    return counts.clamp(max=3 * float(counts.quantile(0.9))).log()


def _slope(size: Tensor, length: Tensor) -> float:
    """The median slope over all pairs of different size, between 0 and 1; 0 where all are alike."""
    first, second = torch.triu_indices(len(size), len(size), 1)
    run, rise = size[second] - size[first], length[second] - length[first]
    apart = run.abs() > 0.1
    return float((rise[apart] / run[apart]).quantile(0.5).clamp(0, 1)) if bool(apart.any()) else 0.0


def central_rows(table: Tensor, without: Sequence[int] = (0,)) -> Tensor:
    """The half of the clients nearest the middle of the round, by all features but those in `without`.

    >>> table = torch.ones(4, 6, dtype=torch.float64); table[1, 1] = -1.0; table[3, 3] = 50.0
    >>> central_rows(table).tolist()
    [0, 2]
    """
    seen = standardised(table)
    kept = [column for column in range(seen.shape[1]) if column not in without]
    farthest = seen[:, kept].abs().max(1).values
    half = max(1, len(seen) // 2)
    return torch.argsort(farthest, stable=True)[:half].sort().values


def _robust_z(values: Tensor) -> Tensor:
    middle = values.quantile(0.5, dim=0)
    spread = (values - middle).abs().quantile(0.5, dim=0) / GAUSSIAN_MAD
    floors = torch.tensor(FLOORS, dtype=values.dtype)
    return (values - middle) / torch.maximum(spread, floors)


def _squashed(z: Tensor) -> Tensor:
    return STRAIGHT * (z / STRAIGHT).asinh()
