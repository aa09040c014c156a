"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("trimmed-mean")
class TrimmedMean(ByzantineBound):
    r"""Per coordinate, drop the `f` smallest and the `f` largest values and average the rest.

    .. math:: \Delta_k = \frac{1}{N-2f} \sum_{i=f+1}^{N-f} U_{(i)k}, \qquad
        U_{(1)k} \le \dots \le U_{(N)k}

    Needs N ≥ 2f+1; f = 0 is the plain mean. Yin et al., "Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates", ICML 2018.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [4.0], [-90.0], [50.0]]))
    >>> aggregators.create("trimmed-mean", f=1).aggregate(sent).delta
    tensor([2.3333])
    """

    clients_per_byzantine, clients_besides = 2, 1

    def proven_kappa(self, clients: int) -> float | None:
        if self.estimates_byzantine:
            return None
        n, f = clients, self.byzantine(clients)
        return 6 * f / (n - 2 * f) * (1 + f / (n - 2 * f)) if n > 2 * f else None

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(trim=self.byzantine(context.clients))

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        return Aggregation(context.measurements.mean_of_middle(self.byzantine(context.clients)))
