"""Federated averaging: the baseline without defence."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from wardround.aggregators.base import Aggregator, Context, Parameters, Sees, register, sample_weights
from wardround.updates import Aggregation, Updates


@register("fedavg")
class FedAvg(Aggregator):
    r"""Mean of the updates weighted by sample counts.

    .. math:: \Delta = \sum_i m_i U_i / \sum_i m_i

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [9.0]]), num_samples=[1, 1, 1_000_000])
    >>> aggregators.create("fedavg").aggregate(sent).delta
    tensor([9.0000])
    >>> aggregators.create("fedavg", sample_cap=2).aggregate(sent).delta
    tensor([5.2500])
    """

    sees: ClassVar[Sees] = "reports"
    is_robust = False

    class Params(Parameters):
        sample_cap: float | None = Field(None, ge=1)
        """A reported sample count above this multiple of the round's median counts as that multiple."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        weights = sample_weights(updates, self.params.sample_cap)
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights)
