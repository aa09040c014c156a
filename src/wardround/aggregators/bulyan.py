"""Bulyan: select by Krum, then agree coordinate by coordinate."""

from __future__ import annotations

import torch

from wardround.aggregators._math.neighbours import krum_scores, repeated_krum
from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("bulyan")
class Bulyan(ByzantineBound):
    r"""Of θ = N−2f rows selected by repeated Krum, per coordinate the mean of the θ−2f nearest their median.

    .. math:: \Delta_k = \frac{1}{\theta-2f} \sum_{i \in B_k} U_{ik}, \qquad
        B_k = \text{the } \theta-2f \text{ selected rows with the least } |U_{ik} - \mathrm{median}_k|

    Krum is scored anew after every pick, among the rows still left. Needs N ≥ 4f+3. No client has a share
    of its own; the column `selected` says who passed the first stage, the scores are Krum's over all rows.

    El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.3], [1.4], [1.6], [-90.0]]))
    >>> out = aggregators.create("bulyan", f=1).aggregate(sent)
    >>> out.delta, out.columns["selected"].tolist()
    (tensor([1.2000]), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    """

    clients_per_byzantine, clients_besides = 4, 3

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        f = self.byzantine(context.clients)
        squared = context.measurements.squared_distances
        chosen = sorted(repeated_krum(squared, f, len(updates) - 2 * f))
        selected = torch.zeros(len(updates), dtype=torch.float64)
        selected[chosen] = 1
        delta = context.measurements.mean_nearest_median(2 * f, chosen)
        return Aggregation(delta, scores=krum_scores(squared, f), columns={"selected": selected})
