"""Multi-Krum: the mean of the updates that Krum likes best."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from wardround.aggregators._math.neighbours import krum_order, krum_scores
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("multi-krum")
class MultiKrum(ByzantineBound):
    r"""The mean of the `m` rows of least Krum score, m = N−f by default.

    .. math:: \Delta = \tfrac1m \sum_{i \in S} U_i, \qquad S = \text{the } m \text{ rows of least }
        \sum_{j \in \mathcal N_i} \|U_i - U_j\|^2

    Needs N ≥ 2f+3. Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.3], [-90.0]]))
    >>> out = aggregators.create("multi-krum", f=1).aggregate(sent)
    >>> out.delta, out.weights.tolist()
    (tensor([1.1500]), [0.25, 0.25, 0.25, 0.25, 0.0])
    """

    clients_per_byzantine, clients_besides = 2, 3

    class Params(ByzantineBound.Params):
        m: int | None = Field(None, ge=1)
        """How many rows are averaged; None: N−f."""

    params: Params

    def minimum_clients(self, clients: int) -> int:
        return max(super().minimum_clients(clients), self.params.m or 1)

    def requirement(self, clients: int) -> str:
        if (self.params.m or 1) > super().minimum_clients(clients):
            return f"N ≥ m = {self.params.m}"
        return super().requirement(clients)

    def resolved(self, clients: int) -> dict[str, Any]:
        m = self.params.m or (None if self.estimates_byzantine else clients - self.byzantine(clients))
        return {**super().resolved(clients), "m": m}

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        f = self.byzantine(context.clients)
        m = self.params.m or len(updates) - f
        squared = context.measurements.squared_distances
        weights = torch.zeros(len(updates), dtype=torch.float64)
        weights[krum_order(squared, f)[:m]] = 1 / m
        delta = context.measurements.weighted_sum(weights)
        return Aggregation(delta, weights=weights, scores=krum_scores(squared, f))
