"""RLR: coordinates on whose sign too few clients agree move the other way."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field

from wardround.aggregators._math.columns import for_each_range
from wardround.aggregators.base import Aggregator, Context, Parameters, register, sample_weights
from wardround.updates import Aggregation, Updates


@register("rlr")
class RobustLearningRate(Aggregator):
    r"""FedAvg with a learning rate per coordinate: +1 where θ clients agree on the sign, −1 elsewhere.

    .. math:: \Delta_k = \eta_k \frac{\sum_i m_i U_{ik}}{\sum_i m_i}, \qquad
        \eta_k = \begin{cases} 1 & |\sum_i \mathrm{sign}(U_{ik})| \ge \theta \\ -1 & \text{otherwise} \end{cases}

    The rate turns around, it does not become 0: that undoes what a backdoor needs and honest clients do not agree on.
    θ is an absolute number in the paper (4 of 10 agents in its code); here it is a share of the clients, 0.4 by
    default, so that it stays right when clients are away. The result is no combination of whole rows: no client has a
    share.

    Ozdayi, Kantarcioglu, Gel, "Defending Against Backdoors in Federated Learning with Robust Learning Rate",
    AAAI 2021.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 0.1], [2.0, -0.1], [3.0, 0.1], [2.0, -6.1]]))
    >>> aggregators.create("rlr", threshold=0.5).aggregate(sent).delta
    tensor([2.0000, 1.5000])
    """

    class Params(Parameters):
        threshold: float = Field(0.4, gt=0, le=1)
        """θ as a share of the clients."""
        sample_cap: float | None = Field(None, ge=1)
        """A reported sample count above this multiple of the round's median counts as that multiple."""

    params: Params

    def resolved(self, clients: int) -> dict[str, Any]:
        return {**super().resolved(clients), "theta": math.ceil(self.params.threshold * clients - 1e-9)}

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        theta = math.ceil(self.params.threshold * len(updates) - 1e-9)
        rows = updates.matrix
        delta = context.measurements.weighted_sum(sample_weights(updates, self.params.sample_cap))

        def turn(_: int, start: int, stop: int) -> None:
            agreement = torch.sign(rows[:, start:stop]).sum(0).abs_()
            delta[start:stop].mul_(torch.where(agreement >= theta, 1.0, -1.0).to(delta.dtype))

        for_each_range(updates.dimension, turn)
        return Aggregation(delta)
