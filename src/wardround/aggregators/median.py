"""The coordinate-wise median."""

from __future__ import annotations

from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("median")
class Median(Aggregator):
    r"""Per coordinate the median over the clients; the mean of the two middle values for an even number.

    .. math:: \Delta_k = \mathrm{median}_i\, U_{ik}

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> aggregators.create("median").aggregate(Updates(torch.tensor([[1.0], [2.0], [-90.0]]))).delta
    tensor([1.])
    """

    def proven_kappa(self, clients: int) -> float | None:
        n, f = clients, self.assumed_byzantine(clients)
        return 4 * (1 + f / (n - 2 * f)) ** 2

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(trim=(context.clients - 1) // 2)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        return Aggregation(context.measurements.mean_of_middle((len(updates) - 1) // 2))
