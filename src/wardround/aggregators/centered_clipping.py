"""Centered clipping: take a bounded step from the last aggregate towards every client."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.kernels import centred_gram
from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, Parameters, register
from wardround.updates import Aggregation, Updates


@register("centered-clipping")
class CenteredClipping(Aggregator):
    r"""Average the rows as seen from a centre, none of them farther away than τ.

    .. math:: v \leftarrow v + \frac1N \sum_i (U_i - v) \min\!\Big(1, \frac{\tau}{\|U_i - v\|}\Big)

    `iterations` times; v starts at the last round's aggregate, at zero in the first round. Since v is a
    combination of that start and the rows, the iteration runs on the Gram matrix about the start. The
    result mixes the rows with the past, so clients have no share of it; scores are the distances to it.

    Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule = aggregators.create("centered-clipping", tau=1.0, iterations=1)
    >>> rule.aggregate(Updates(torch.tensor([[0.5], [0.5], [0.5], [900.0]]))).delta
    tensor([0.6250])
    """

    class Params(Parameters):
        tau: float = Field(10.0, gt=0)
        """How far a row may pull."""
        tau_quantile: float | None = Field(None, gt=0, le=1)
        """Take this quantile of the round's norms as τ instead."""
        iterations: int = Field(3, ge=1)
        """Steps from the last aggregate, per round."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.last: Tensor | None = None

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=self.last is not None, centre=self.last)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        quantile = self.params.tau_quantile
        tau = self.params.tau if quantile is None else updates.norms.quantile(quantile).item()
        start = torch.zeros(updates.dimension, dtype=updates.dtype) if self.last is None else self.last
        geometry = centred_gram(updates, start) if self.last is None else context.measurements.geometry
        n = len(updates)
        steps = torch.zeros(n, dtype=torch.float64)  # v = start + Σ steps_i (U_i − start)
        for _ in range(self.params.iterations):
            distances = geometry.squared_distances_to(steps).sqrt()
            scale = torch.where(distances > tau, tau / distances, 1.0)
            steps = steps * (1 - scale.sum() / n) + scale / n
        delta = context.measurements.weighted_sum(steps).add_(start, alpha=1 - steps.sum().item())
        self.last = delta.clone()
        columns = {"clip_scale": scale, "tau": torch.full_like(scale, tau)}
        return Aggregation(delta, scores=geometry.squared_distances_to(steps).sqrt(), columns=columns)

    def state_dict(self) -> dict[str, Any]:
        return {"last": None if self.last is None else self.last.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = None if state["last"] is None else state["last"].clone()
