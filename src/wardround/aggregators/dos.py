"""DOS: weights from the outlier scores of clients' distance profiles."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.copod import copod_scores
from wardround.aggregators._math.kernels import CentredGram
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
        cosine = _cosine_distances(squared, context.measurements.geometry)
        scores = (_copod(squared.sqrt()) + _copod(cosine)) / 2
        weights = torch.softmax(-scores, 0)
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=scores)


def _cosine_distances(squared: Tensor, geometry: CentredGram) -> Tensor:
    r"""1 − cos(θ_i, θ_j) of θ_i = b + x_i, from ‖θ_i−θ_j‖², ⟨x_i, x_j⟩, ⟨b, x_i⟩ and ‖b‖².

    Updates are small against the weights, so all θ are nearly parallel and 1 − cos cancels to nothing. There

    .. math:: 1-\cos = \frac{\|\theta_i-\theta_j\|^2 - (\|\theta_i\|-\|\theta_j\|)^2}{2\|\theta_i\|\|\theta_j\|}

    keeps its digits, with :math:`\|\theta_i\|-\|\theta_j\|` taken from the difference of the squares. A zero
    vector is at distance 1 from any other, and at 0 from another zero vector.
    """
    gram, projections, base_squared = geometry.gram, geometry.projections, geometry.base_squared
    excess = 2 * projections + gram.diagonal()  # ‖θ_i‖² − ‖b‖²
    norms = (base_squared + excess).clamp(min=0).sqrt()
    product = norms[:, None] * norms[None, :]
    inner = base_squared + projections[:, None] + projections[None, :] + gram
    directly = 1 - inner / product
    total = norms[:, None] + norms[None, :]
    difference = (excess[:, None] - excess[None, :]) / total
    closely = (squared - difference.square()).clamp(min=0) / (2 * product)
    distances = torch.where(directly > 0.01, directly, closely)
    distances = torch.where(product > 0, distances, (total > 0).double())
    return distances.fill_diagonal_(0)


def _copod(distances: Tensor) -> Tensor:
    return torch.from_numpy(copod_scores(distances.numpy()))
