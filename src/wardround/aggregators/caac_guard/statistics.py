"""The tests of `caac-guard`: each turns a round's geometry, or the clients' own past, into one score per client.

All scores are oriented alike: 1 is the limit, above it a client is suspicious. None sees more than N × N numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD

__all__ = [
    "cosine_gaps",
    "excess_norms",
    "in_step",
    "isolation",
    "same_norm_neighbours",
    "size_slope",
    "twins",
    "usual_log_norms",
]

SMALLEST_GAP = 1e-12
"""Cosine gaps below this are rounding."""
LARGEST_SCORE = 1e6
"""No score is larger: a record must stay readable."""


def cosine_gaps(squared_distances: Tensor, norms: Tensor) -> Tensor:
    """Compute 1 − cos(U_i, U_j) from distances, so that it is exact also for rows that hardly differ.

    Args:
        squared_distances: N × N, ‖U_i − U_j‖².
        norms: N norms of the rows.

    Returns:
        N × N gaps from 0 to 2; 1 where a row is zero.

    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]).double()
    >>> cosine_gaps(torch.cdist(rows, rows) ** 2, rows.norm(dim=1))[0].round()
    tensor([0., 1., 2.], dtype=torch.float64)
    """
    lengths = 2 * norms[:, None] * norms[None, :]
    apart = squared_distances - (norms[:, None] - norms[None, :]) ** 2
    gaps = torch.where(lengths > 0, (apart / lengths.clamp(min=1e-300)).clamp(0, 2), 1.0)
    return gaps.fill_diagonal_(0)


def isolation(gaps: Tensor, norms: Tensor, dimension: int) -> Tensor:
    r"""Find rows that point nowhere that anyone else does: noise.

    The cosine of a random row with any other has mean square 1/D, so that

    .. math:: x_i = \frac{D}{N-1} \sum_{j\ne i} \cos^2(U_i, U_j)

    is 1 on average, with standard deviation :math:`\sqrt{2/(N-1)}`; the limit lies five of these above 1.
    Standing apart means something only where most clients lie ten times above the limit.

    Args:
        gaps: N × N, 1 − cosine of all pairs.
        norms: N norms of the rows.
        dimension: D.

    Returns:
        N scores; all 0 with fewer than four clients, and where the round is too diverse to tell.
    """
    n = len(gaps)
    if n < 4:
        return torch.zeros(n, dtype=torch.float64)
    alike = dimension * (1 - gaps).fill_diagonal_(0).square().sum(1) / (n - 1)
    limit = 1 + 5 * math.sqrt(2 / (n - 1))
    if alike.quantile(0.5) <= 10 * limit:
        return torch.zeros(n, dtype=torch.float64)
    return torch.where(norms > 0, limit / alike.clamp(min=SMALLEST_GAP), 0.0).clamp(max=LARGEST_SCORE)


def twins(gaps: Tensor, ratio: float, isolated: Tensor) -> Tensor:
    r"""Find pairs of rows that are much closer than clients of this round usually are to their nearest.

    .. math:: \mathrm{score}_{ij} = \frac{\mathrm{ratio} \cdot \mathrm{median}_k\, e_k}{1 - \cos(U_i, U_j)},
        \qquad e_k = \min_{l\ne k} (1 - \cos(U_k, U_l))

    Training on samples of one's own leaves a part in every honest row that nobody else has; colluders who send
    the same row, or one within a little of it, have none. Isolated rows do not count in the median, which is an
    honest client's while less than half of the others collude.

    Args:
        gaps: N × N, 1 − cosine of all pairs.
        ratio: Share of the usual gap to the nearest that is too small.
        isolated: N booleans, the rows that are noise.

    Returns:
        N × N scores of the pairs, 0 on the diagonal.
    """
    n = len(gaps)
    usual = usual_gap(gaps, isolated)
    if usual <= SMALLEST_GAP:  # most are alike: nothing to tell apart
        return torch.zeros(n, n, dtype=torch.float64)
    return (ratio * usual / gaps.clamp(min=SMALLEST_GAP)).clamp(max=LARGEST_SCORE).fill_diagonal_(0)


def same_norm_neighbours(gaps: Tensor, log_norms: Tensor, isolated: Tensor) -> Tensor:
    """Find clients whose updates are close to several others and have almost the same norm: a sign of collusion.

    Honest norms go with sizes and case mixes. A client scores half the number of others whose direction is nearer than
    0.6 of what is usual between neighbours and whose log norm differs by less than 0.03 of the round's spread:
    three are too many.

    Args:
        gaps: N × N, 1 − cosine of all pairs.
        log_norms: N values.
        isolated: N booleans, the rows that are noise.

    Returns:
        N scores.

    >>> near = torch.tensor([0.02, 0.3, 0.5]).repeat_interleave(4)
    >>> gaps = torch.where(torch.eye(12) > 0, 0.0, torch.maximum(near[:, None], near[None, :]))
    >>> log_norms = torch.cat([torch.full((4,), 0.7), torch.linspace(-1, 1, 8)])
    >>> same_norm_neighbours(gaps, log_norms, torch.zeros(12, dtype=torch.bool)).tolist()[:5]
    [1.5, 1.5, 1.5, 1.5, 0.0]
    """
    usual = usual_gap(gaps, isolated)
    spread = float((log_norms - log_norms.quantile(0.5)).abs().quantile(0.5)) / GAUSSIAN_MAD
    near = (gaps < 0.6 * usual).fill_diagonal_(False)
    alike = (log_norms[:, None] - log_norms[None, :]).abs() < 0.03 * spread
    return (near & alike).sum(1) / 2


def usual_gap(gaps: Tensor, isolated: Tensor) -> float:
    """The median of the clients' gaps to their nearest (of N × N gaps); 0 where too few are not isolated."""
    nearest = (gaps + 3 * torch.eye(len(gaps), dtype=gaps.dtype)).min(1).values[~isolated]
    return float(nearest.quantile(0.5)) if len(nearest) >= 3 else 0.0


def size_slope(log_norms: Tensor, log_samples: Tensor) -> float:
    """Estimate how norms grow with sample counts, log on log: the median slope over all pairs of clients.

    Each pair counts as much as its sizes differ, up to half a unit: clients of about one size say little, and no
    outlier has much leverage. Larger clients take more steps in a round.

    Args:
        log_norms: N values.
        log_samples: N values.

    Returns:
        A slope within [0, 1]: the bounds keep small what a false count buys.

    >>> size_slope(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 2.0, 3.0]))
    0.5
    """
    i, j = torch.triu_indices(len(log_norms), len(log_norms), 1)
    run = log_samples[i] - log_samples[j]
    apart = run.abs() > 0.1
    if not bool(apart.any()):
        return 0.0
    slopes, order = ((log_norms[i] - log_norms[j])[apart] / run[apart]).sort()
    weight = run[apart].abs().clamp(max=0.5)[order].cumsum(0)
    return float(slopes[torch.searchsorted(weight, weight[-1:] / 2)].clamp(0, 1))


def usual_log_norms(log_norms: Tensor, samples: Tensor) -> Tensor:
    """Estimate which log norm is usual in this round for a client of each one's size.

    Args:
        log_norms: N values.
        samples: N sample counts, as the clients report them.

    Returns:
        N log norms.

    >>> usual_log_norms(torch.tensor([0.0, 0.5, 4.0]), torch.tensor([1.0, 2.718281828, 7.389056099])).round(decimals=2)
    tensor([0., 1., 2.])
    """
    log_samples = samples.clamp(min=1).log()
    explained = size_slope(log_norms, log_samples) * log_samples
    return explained + (log_norms - explained).quantile(0.5)


def excess_norms(excess: Tensor, z: float, factors: tuple[float, float]) -> Tensor:
    """Find norms that lie far above what is usual for the client's size.

    The limit is z robust standard deviations of the residuals, but neither below the first of the two
    factors nor above the second: many liars widen the spread, and may not hide in what they widened.

    Args:
        excess: N values, log norm minus the usual one.
        z: Standard deviations that are too many.
        factors: Smallest and largest limit, as factors of the norm.

    Returns:
        N scores: the excess in units of the limit.
    """
    spread = float(excess.abs().quantile(0.5)) / GAUSSIAN_MAD
    limit = min(max(z * spread, math.log(factors[0])), math.log(factors[1]))
    return excess / limit


def in_step(shortfalls: Tensor, limit: float, tolerance: float) -> Tensor:
    """Find clients that turn away from their own past in step with someone else: colluders who drift.

    Honest clients turn too as the model learns, but each at its own time and pace. A client scores its mean
    shortfall over the limit where another's differs from it by less than `tolerance` of the smaller of the two, on
    average over the window.

    Args:
        shortfalls: N × rounds, how far each client is behind the round's median in each of its last rounds.
        limit: Mean shortfall that scores 1.
        tolerance: How much two shortfalls may differ, relatively, to be in step.

    Returns:
        N scores; 0 for who is in step with nobody.

    >>> window = torch.tensor([[0.2, 0.3], [0.21, 0.3], [0.5, 0.0], [0.0, 0.0]])
    >>> in_step(window, limit=0.25, tolerance=0.1)
    tensor([1.0000, 1.0200, 0.0000, 0.0000])
    """
    behind = shortfalls.mean(1)
    apart = (shortfalls[:, None] - shortfalls[None]).abs().mean(2).fill_diagonal_(torch.inf)
    together = apart < tolerance * torch.minimum(behind[:, None], behind[None, :])
    return torch.where(together.any(1), behind / limit, torch.zeros_like(behind))
