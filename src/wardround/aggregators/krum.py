"""Krum: the one update that most others are near to."""

from __future__ import annotations

import torch

from wardround.aggregators._math.neighbours import krum_order, krum_scores
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("krum")
class Krum(ByzantineBound):
    r"""The row with the least sum of squared distances to its N−f−2 nearest others.

    .. math:: i^* = \arg\min_i \sum_{j \in \mathcal N_i} \|U_i - U_j\|^2, \quad |\mathcal N_i| = N-f-2,
        \quad i \notin \mathcal N_i, \qquad \Delta = U_{i^*}

    Needs N ≥ 2f+3. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.4], [-90.0]]))
    >>> aggregators.create("krum", f=1).aggregate(sent).delta
    tensor([1.1000])
    """

    clients_per_byzantine, clients_besides = 2, 3

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        f = self.byzantine(context.clients)
        squared = context.measurements.squared_distances
        chosen = krum_order(squared, f)[0]
        weights = torch.zeros(len(updates), dtype=torch.float64)
        weights[chosen] = 1
        return Aggregation(context.measurements.row(chosen), weights=weights, scores=krum_scores(squared, f))
