"""The oracle: what averaging reaches when it is told who attacks. A yardstick, not a defence."""

from __future__ import annotations

import torch

from wardround.aggregators.base import Aggregator, Context, register, sample_weights
from wardround.updates import Aggregation, Updates


@register("oracle")
class Oracle(Aggregator):
    r"""FedAvg over the clients that neither attack nor are broken in this round.

    .. math:: \Delta = \sum_{i \in H} m_i U_i / \sum_{i \in H} m_i

    H is known to simulations alone, and only they can run it: what another rule loses against it is the price of not
    knowing who attacks. The patients of attackers and broken hospitals are lost to it too. Where nobody attacks it is
    FedAvg to the last bit. Whoever is left out is flagged. Where nobody is left, the round is skipped.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [3.0], [-90.0]]), clients=["a", "b", "x"])
    >>> aggregators.create("oracle").aggregate(sent, attackers={"x"}).delta
    tensor([2.])
    """

    needs_attackers = True
    listed = False

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        assert context.attackers is not None  # `needs_attackers` has seen to it
        flags = torch.tensor([client in context.attackers for client in updates.clients])
        honest = [row for row, attacks in enumerate(flags.tolist()) if not attacks]
        weights = torch.zeros(len(updates), dtype=torch.float64)
        if not honest:
            delta = torch.zeros(updates.dimension, dtype=updates.dtype)
            return Aggregation(
                delta, weights=weights, flags=flags, skipped="every client attacks or is broken"
            )
        weights[honest] = sample_weights(updates.select(honest), cap=None)
        return Aggregation(
            context.measurements.weighted_sum(weights), weights=weights, scores=flags.double(), flags=flags
        )
