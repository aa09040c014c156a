"""MoNNA: the mean of the N−f updates nearest to one that is trusted."""

from __future__ import annotations

import torch

from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("monna")
class NearestNeighbourAveraging(ByzantineBound):
    r"""Nearest-neighbour averaging: the mean of the N−f rows nearest to a trusted client's, its own among them.

    .. math:: \Delta = \frac{1}{N-f} \sum_{i \in \mathcal N_t} U_i, \qquad
        \mathcal N_t = \text{the } N-f \text{ rows of least } \|U_i - U_t\|

    In its paper every client does this for itself, without a server, and trusts itself. On a server somebody has to be
    trusted: **it is no defence if that client attacks**. A round without the trusted client is skipped. Needs
    N ≥ 2f+1. Scores are the distances to the trusted row.

    Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan, "Robust Collaborative Learning with Linear Gradient Overhead",
    ICML 2023.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [-90.0]]), clients=["a", "b", "c"])
    >>> round(aggregators.create("monna", f=1, trusted="b").aggregate(sent).delta.item(), 2)
    1.1
    """

    clients_per_byzantine, clients_besides = 2, 1

    class Params(ByzantineBound.Params):
        trusted: str | None = None
        """The client that is trusted; None: the first by name."""

    params: Params

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        trusted = min(updates.clients) if self.params.trusted is None else self.params.trusted
        weights = torch.zeros(len(updates), dtype=torch.float64)
        if trusted not in updates.clients:
            nothing = torch.zeros(updates.dimension, dtype=updates.matrix.dtype)
            return Aggregation(
                nothing, weights=weights, skipped=f"no update of {trusted}, the trusted client"
            )
        squared = context.measurements.squared_distances[updates.clients.index(trusted)]
        size = len(updates) - self.byzantine(context.clients)
        weights[squared.argsort(stable=True)[:size]] = 1 / size
        return Aggregation(
            context.measurements.weighted_sum(weights), weights=weights, scores=squared.clamp(min=0).sqrt()
        )
