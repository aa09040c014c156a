"""Cosine distances of rows, and of the weights that rows lead to."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.kernels import CentredGram

__all__ = ["cosine_distances", "inner_products"]


def inner_products(geometry: CentredGram) -> Tensor:
    """N × N inner products ⟨b + x_i, b + x_j⟩ of rows that were projected on b = anchor + centre."""
    projections = geometry.projections
    return geometry.base_squared + projections[:, None] + projections[None, :] + geometry.gram


def cosine_distances(squared: Tensor, geometry: CentredGram) -> Tensor:
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
    inner = inner_products(geometry)
    directly = 1 - inner / product
    total = norms[:, None] + norms[None, :]
    difference = (excess[:, None] - excess[None, :]) / total
    closely = (squared - difference.square()).clamp(min=0) / (2 * product)
    distances = torch.where(directly > 0.01, directly, closely)
    distances = torch.where(product > 0, distances, (total > 0).double())
    return distances.fill_diagonal_(0)
