"""RFA: the geometric median by the smoothed Weiszfeld iteration, in N dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from wardround.aggregators.base import (
    Aggregator,
    Context,
    MeasurementPlan,
    Parameters,
    register,
    sample_weights,
)
from wardround.updates import Aggregation, Updates

Vector = NDArray[Any]


@register("rfa")
class Rfa(Aggregator):
    r"""Geometric median of the updates, weighted by sample counts.

    .. math:: z \leftarrow \frac{\sum_i \beta_i U_i}{\sum_i \beta_i}, \qquad
        \beta_i = \frac{m_i}{\max(\nu, \|z - U_i\|)}, \qquad z_0 = \frac{\sum_i m_i U_i}{\sum_i m_i}

    until z moves by less than `tolerance` of its length. Every z is a combination of the rows, so the
    iteration runs on their Gram matrix; the D coordinates are touched once before and once after it.
    The smoothing ν keeps z finite where it meets a row. Scores are the distances to z.

    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0], [2.0, 2.0]]))
    >>> aggregators.create("rfa").aggregate(sent).delta.round(decimals=3)
    tensor([2., 2.])
    """

    class Params(Parameters):
        nu: float = Field(1e-6, gt=0)
        """Smoothing: no distance counts as shorter."""
        iterations: int = Field(100, ge=1)
        """Steps at most."""
        tolerance: float = Field(1e-6, ge=0)
        """Stop when z moves by less than this share of its length."""
        sample_cap: float | None = Field(None, ge=1)
        """A reported sample count above this multiple of the round's median counts as that multiple."""

    params: Params

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        shares = sample_weights(updates, self.params.sample_cap)
        geometry = context.measurements.geometry
        weights = torch.from_numpy(
            self._weiszfeld(geometry.gram.numpy(), shares.numpy(), updates.squared_norms.numpy())
        )
        distances = geometry.squared_distances_to(weights).sqrt()
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=distances)

    def _weiszfeld(self, gram: Vector, shares: Vector, squared_norms: Vector) -> Vector:
        """The coefficients of z, which are never negative and sum to 1. (numpy: its small steps are cheap.)"""
        own = gram.diagonal()
        a = shares
        for _ in range(self.params.iterations):
            image = gram @ a
            squared = np.maximum(a @ image - 2 * image + own, 0)
            length = np.sqrt(max(a @ squared_norms - a @ squared, 0))  # ‖z‖² = Σaᵢ‖Uᵢ‖² − Σaᵢ‖Uᵢ − z‖²
            beta = shares / np.maximum(np.sqrt(squared), self.params.nu)
            step = beta / beta.sum() - a
            a = a + step
            if np.sqrt(max(step @ gram @ step, 0)) <= self.params.tolerance * length:
                break
        return a
