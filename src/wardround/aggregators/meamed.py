"""MeaMed: the mean around the median."""

from __future__ import annotations

from wardround.aggregators.base import ByzantineBound, Context, register
from wardround.updates import Aggregation, Updates


@register("meamed")
class MeaMed(ByzantineBound):
    r"""Per coordinate, the mean of the N−f values nearest to the median.

    .. math:: \Delta_k = \frac{1}{N-f} \sum_{i \in B_k} U_{ik}, \qquad
        B_k = \text{the } N-f \text{ rows of least } |U_{ik} - \mathrm{median}_k|

    Needs N ≥ 2f+1. No client has a share of its own.

    Xie, Koyejo, Gupta, "Generalized Byzantine-tolerant SGD", 2018 (arXiv:1802.10116).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [3.0], [-90.0], [3.5]]))
    >>> aggregators.create("meamed", f=1).aggregate(sent).delta
    tensor([2.3750])
    """

    clients_per_byzantine, clients_besides = 2, 1

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        return Aggregation(context.measurements.mean_nearest_median(self.byzantine(context.clients)))
