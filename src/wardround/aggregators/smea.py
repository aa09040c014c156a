"""SMEA: the mean of the N−f updates that vary least in any direction."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.subsets import check_subsets, subsets_without
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates

SUBSETS_AT_ONCE = 4_096


@register("smea")
class SmallestMaximumEigenvalue(ByzantineBound):
    r"""Smallest maximum eigenvalue averaging: the mean of the N−f rows with the least top eigenvalue of covariance.

    .. math:: \Delta = \bar U_{S^*}, \qquad S^* \in \arg\min_{|S| = N-f} \lambda_{\max}\Big(\frac{1}{N-f}
        \sum_{i \in S} (U_i - \bar U_S)(U_i - \bar U_S)^\top\Big)

    The eigenvalue is that of the subset's centred Gram matrix, (N−f) × (N−f), and exact. (ByzFL's code takes one step
    of the power method from a random start, so that its choice differs from run to run.) Every subset is looked at, so
    that more than 200,000 of them are refused. Needs N ≥ 2f+1. Scores are the distances to the result.

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
        spread = torch.cat([_top_eigenvalues(geometry.gram, part) for part in subsets.split(SUBSETS_AT_ONCE)])
        weights = torch.zeros(len(updates), dtype=torch.float64)
        weights[subsets[spread.argmin()]] = 1 / subsets.shape[1]
        distances = geometry.squared_distances_to(weights).sqrt()
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=distances)


def _top_eigenvalues(gram: Tensor, subsets: Tensor) -> Tensor:
    """The top eigenvalue of each subset's covariance, times N−f (gram: N × N; subsets: S × (N−f) places)."""
    own = gram[subsets[:, :, None], subsets[:, None, :]]
    lines = own.mean(2, keepdim=True)
    values: Tensor = torch.linalg.eigvalsh(own - lines - lines.mT + lines.mean(1, keepdim=True))
    return values[:, -1]
