"""A masked round in one process: the same state machines as in a federation, without messages. For simulations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits
from wardround.flower.secure_aggregation.server import MaskingServer, SumLost
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.masking import MaskedSum
from wardround.updates import Updates

__all__ = ["sum_in_process"]


def sum_in_process(
    updates: Updates, weights: Mapping[str, float], order: str, min_cohort: int, max_share: float
) -> MaskedSum:
    """The masked sum of a simulated round; nobody drops out.

    Args:
        updates: N × D, one row per client.
        weights: client → the factor of its update in the sum.
        order: the hash of the training order.
        min_cohort: fewest clients in a sum.
        max_share: largest share of one client in it.
    """
    limits = Limits(min_cohort, max_share)
    clients = {name: MaskingClient(name, order, limits) for name in updates.clients}
    cohort = Cohort(order, {name: client.public_keys() for name, client in clients.items()}, weights)
    try:
        server = MaskingServer(cohort, updates.dimension, limits)
        for name, client in clients.items():
            server.take_shares(name, client.share_keys(cohort))
        deliveries = server.deliveries()
        for name, row in zip(updates.clients, updates.matrix, strict=True):
            server.take_masked(name, clients[name].mask(deliveries[name], row.double().numpy()))
        survivors = server.survivors()
        for name, client in clients.items():
            server.take_tags(name, client.confirm(survivors))
        for name, tags in server.confirmations().items():
            server.take_revealed(name, clients[name].reveal(tags))
        total = server.unmask()
    except (Refused, SumLost) as reason:
        return MaskedSum(weights, reason=str(reason))
    return MaskedSum(weights, torch.from_numpy(total), survivors)
