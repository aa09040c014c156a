"""DOS: weights from the outlier scores of clients' distance profiles."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.copod import copod_scores
from wardround.aggregators._math.cosines import cosine_distances
from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates


@register("dos")
class Dos(Aggregator):
    r"""Softmax of minus the mean COPOD score of the rows of two distance matrices.

    .. math:: r = \tfrac12\big(\mathrm{COPOD}(M_E) + \mathrm{COPOD}(M_C)\big), \qquad
        w = \mathrm{softmax}(-r), \qquad \Delta = \sum_i w_i U_i

    :math:`M_E` and :math:`M_C` hold the Euclidean and cosine distances of the *parameters*
    :math:`\theta_i = w + U_i`, so the rule needs `global_weights`. Scores are r.

    Alkhunaizi et al., "Suppressing Poisoning Attacks on Federated Learning for Medical Imaging",
    MICCAI 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 1.1], [1.1, 1.0], [0.9, 1.0], [1.0, 1.0], [-9.0, 9.0]]))
    >>> out = aggregators.create("dos").aggregate(sent, global_weights=torch.ones(2))
    >>> int(out.scores.argmax()), bool(out.weights[4] < 0.01)
    (4, True)
    """

    needs_global_weights = True

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True, anchor=context.global_weights)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        squared = context.measurements.squared_distances
        cosine = cosine_distances(squared, context.measurements.geometry)
        scores = (_copod(squared.sqrt()) + _copod(cosine)) / 2
        weights = torch.softmax(-scores, 0)
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=scores)


def _copod(distances: Tensor) -> Tensor:
    return torch.from_numpy(copod_scores(distances.numpy()))
