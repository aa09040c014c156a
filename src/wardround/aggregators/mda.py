"""MDA: the mean of the N−f updates that lie closest together."""

from __future__ import annotations

import torch

from wardround.aggregators._math.subsets import check_subsets, subsets_without
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("mda")
class MinimumDiameterAveraging(ByzantineBound):
    r"""Minimum-diameter averaging: the mean of the N−f rows whose greatest distance from one another is least.

    .. math:: \Delta = \frac{1}{N-f} \sum_{i \in S^*} U_i, \qquad
        S^* \in \arg\min_{|S| = N-f} \max_{i,j \in S} \|U_i - U_j\|

    Every subset is looked at, so that more than 200,000 of them are refused. Often several have the same diameter,
    that of one pair of rows; of these the one with the least sum of squared distances is taken, so that the choice does
    not hang on the order of the clients. Needs N ≥ 2f+1. Scores are the distances to the result.

    El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault, "Genuinely Distributed Byzantine Machine Learning", PODC 2020.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.3], [-90.0]]))
    >>> out = aggregators.create("mda", f=1).aggregate(sent)
    >>> round(out.delta.item(), 2), out.weights.tolist()
    (1.15, [0.25, 0.25, 0.25, 0.25, 0.0])
    """

    clients_per_byzantine, clients_besides = 2, 1

    def check(self, clients: int) -> None:
        super().check(clients)
        check_subsets(self.name, clients, self.byzantine(clients))

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        n, squared = len(updates), context.measurements.squared_distances
        subsets = subsets_without(n, self.byzantine(context.clients))
        diameters = torch.zeros(len(subsets), dtype=squared.dtype)
        for place in range(subsets.shape[1] - 1):  # no S × (N−f) × (N−f) distances in memory
            others = squared[subsets[:, place, None], subsets[:, place + 1 :]]
            diameters = torch.maximum(diameters, others.amax(1))
        closest = subsets[diameters == diameters.min()]
        sums = torch.stack([squared[places][:, places].sum() for places in closest])
        weights = torch.zeros(n, dtype=torch.float64)
        weights[closest[sums.argmin()]] = 1 / subsets.shape[1]
        distances = context.measurements.geometry.squared_distances_to(weights).sqrt()
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=distances)
