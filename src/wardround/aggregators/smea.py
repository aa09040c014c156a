"""SMEA: the mean of the N−f updates that vary least in any direction."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.subsets import check_subsets, subsets_without
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates

SUBSETS_AT_ONCE = 1_024
EIGENVALUES_AT_ONCE = 8
ROUNDING, TINY = 1e-12, 1e-290
"""Share of the rows' squared norms that is far above all rounding errors, and what stands for it where these are 0."""


@register("smea")
class SmallestMaximumEigenvalue(ByzantineBound):
    r"""Smallest maximum eigenvalue averaging: the mean of the N−f rows with the least top eigenvalue of covariance.

    .. math:: \Delta = \bar U_{S^*}, \qquad S^* \in \arg\min_{|S| = N-f} \lambda_{\max}\Big(\frac{1}{N-f}
        \sum_{i \in S} (U_i - \bar U_S)(U_i - \bar U_S)^\top\Big)

    The eigenvalue is that of the subset's centred Gram matrix, (N−f) × (N−f), and exact; it is not computed where a
    cheaper test shows that the subset is not the best. (ByzFL's code takes one step of the power method from a random
    start, so that its choice differs from run to run.) Every subset is looked at, so that more than 200,000 of them are
    refused. Needs N ≥ 2f+1. Scores are the distances to the result.

    Allouah, Guerraoui, Gupta, Pinot, Stephan, "On the Privacy-Robustness-Utility Trilemma in Distributed Learning",
    ICML 2023, which also proves κ = 4f/(N−f) · (1 + f/(N−2f))².

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.3], [-90.0]]))
    >>> round(aggregators.create("smea", f=1).aggregate(sent).delta.item(), 2)
    1.15
    """

    clients_per_byzantine, clients_besides = 2, 1

    def check(self, clients: int) -> None:
        super().check(clients)
        check_subsets(self.name, clients, self.byzantine(clients))

    def proven_kappa(self, clients: int) -> float | None:
        f = self.byzantine(clients)
        if self.estimates_byzantine or clients <= 2 * f:
            return None
        return 4 * f / (clients - f) * (1 + f / (clients - 2 * f)) ** 2

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        geometry = context.measurements.geometry
        subsets = subsets_without(len(updates), self.byzantine(context.clients))
        weights = torch.zeros(len(updates), dtype=torch.float64)
        weights[subsets[least_spread(geometry.gram, subsets)]] = 1 / subsets.shape[1]
        distances = geometry.squared_distances_to(weights).sqrt()
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=distances)


def least_spread(gram: Tensor, subsets: Tensor) -> int:
    r"""Find the subset whose covariance has the least top eigenvalue, the first of several.

    Whether a top eigenvalue is below t costs a fraction of the eigenvalue itself: tI − C then has a Cholesky
    decomposition. So only those that are, below the least so far, are computed, the most promising first:
    λ_max ≥ ‖C‖²/tr C. A slack above all rounding errors keeps what might tie.

    Args:
        gram: N × N products of the rows.
        subsets: S × (N−f) places.

    Returns:
        A place among the subsets: that of the least of all top eigenvalues, as if each had been computed.
    """
    best, chosen = float("inf"), 0
    for start in range(0, len(subsets), SUBSETS_AT_ONCE):
        part = subsets[start : start + SUBSETS_AT_ONCE]
        centred, slack = _quickly_centred(gram, part)
        traces = centred.diagonal(dim1=1, dim2=2).sum(1)
        remaining = (torch.linalg.vector_norm(centred, dim=(1, 2)).square() / traces).argsort(stable=True)
        while len(remaining):
            promising, remaining = remaining[:EIGENVALUES_AT_ONCE], remaining[EIGENVALUES_AT_ONCE:]
            tops = torch.linalg.eigvalsh(_centred(gram, part[promising]))[:, -1]
            least = float(tops.min())
            place = start + int(promising[tops == least].min())
            if least < best or (least == best and place < chosen):
                best, chosen = least, place
            remaining = remaining[_are_below(centred[remaining], best + slack[remaining])]
    return chosen


def _quickly_centred(gram: Tensor, subsets: Tensor) -> tuple[Tensor, Tensor]:
    """`_centred` but for rounding, and S bounds far above what rounding does to its eigenvalues."""
    count, size = subsets.shape
    member = torch.zeros(count, len(gram), dtype=gram.dtype).scatter_(1, subsets, 1)
    means = (member @ gram / size).gather(1, subsets)
    lines = means - means.mean(1, keepdim=True) / 2
    own = gram[subsets].gather(2, subsets[:, None, :].expand(count, size, size))
    slack = ROUNDING * (member @ gram.diagonal()) + TINY
    return own.sub_(lines[:, :, None]).sub_(lines[:, None, :]), slack


def _centred(gram: Tensor, subsets: Tensor) -> Tensor:
    """S × (N−f) × (N−f): the Gram matrix of each subset about its own mean."""
    own = gram[subsets[:, :, None], subsets[:, None, :]]
    lines = own.mean(2, keepdim=True)
    centred: Tensor = own - lines - lines.mT + lines.mean(1, keepdim=True)
    return centred


def _are_below(centred: Tensor, bounds: Tensor) -> Tensor:
    """S booleans: is the top eigenvalue of each S × m × m matrix below its bound? Overwrites the matrices."""
    shifted = centred.neg_()
    shifted.diagonal(dim1=1, dim2=2).add_(bounds[:, None])
    below: Tensor = torch.linalg.cholesky_ex(shifted).info == 0
    return below
