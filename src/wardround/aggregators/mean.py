"""The plain mean: every client counts the same."""

from __future__ import annotations

import torch

from wardround.aggregators.base import Aggregator, Context, register
from wardround.updates import Aggregation, Updates


@register("mean")
class Mean(Aggregator):
    r"""Unweighted mean of the updates.

    .. math:: \Delta = \tfrac1N \sum_i U_i

    Federated averaging (McMahan et al., AISTATS 2017) as if all had the same number of samples.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> aggregators.create("mean").aggregate(Updates(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))).delta
    tensor([2., 1.])
    """

    sees = "reports"
    is_robust = False

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        weights = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights)
