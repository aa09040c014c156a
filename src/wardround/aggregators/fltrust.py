"""FLTrust: the server trains a little itself and trusts those who go its way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, register
from wardround.errors import ParameterError
from wardround.updates import Aggregation, Updates


@register("fltrust")
class FlTrust(Aggregator):
    r"""Mean of the rows scaled to the root update's length, weighted by their cosine to it.

    .. math:: \mathrm{TS}_i = \max(0, \cos(U_i, g_0)), \qquad
        \Delta = \frac{\sum_i \mathrm{TS}_i\, \tfrac{\|g_0\|}{\|U_i\|}\, U_i}{\sum_i \mathrm{TS}_i}

    :math:`g_0` is the server's own update from a small trusted root set (`root_update`). Nobody trusted:
    delta is zero. Scores are 1 − cosine; whoever earns no trust is flagged.

    Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[2.0, 0.0], [0.0, 5.0], [-9.0, 0.0]]))
    >>> out = aggregators.create("fltrust").aggregate(sent, root_update=torch.tensor([1.0, 0.0]))
    >>> out.delta, out.flags.tolist()
    (tensor([1., 0.]), [False, True, True])
    """

    needs_root_update = True

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(dots_with=context.root_update)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        length = root_length(self.name, updates, context)
        if not math.isfinite(length):
            return skipped_without_root(updates)
        norms = updates.norms
        scale = scale_to(length, norms)
        cosines = context.measurements.cosines(otherwise=0.0)
        trust = cosines.clamp(min=0) * (scale > 0)
        total = trust.sum()
        weights = trust / total if total > 0 else torch.zeros_like(trust)
        delta = context.measurements.weighted_sum(weights * scale)
        columns = {"cosine": cosines, "clip_scale": scale}
        return Aggregation(delta, weights=weights, scores=1 - cosines, flags=trust == 0, columns=columns)


def root_length(rule: str, updates: Updates, context: Context) -> float:
    """‖g₀‖ of the server's own update, which must be as long as the rows are."""
    root = context.root_update
    assert root is not None  # `needs_root_update` has seen to it
    if len(root) != updates.dimension:
        raise ParameterError(
            f"{rule}: root_update has {len(root)} entries, the updates have {updates.dimension}"
        )
    return context.measurements.vector_norm


def scale_to(length: float, norms: Tensor) -> Tensor:
    """What to multiply rows by to give them one length; 0 for a row that is too short to have a direction.

    Args:
        length: the wanted norm.
        norms: N norms, float64.

    Returns:
        N factors. A row more than 10¹⁹ times shorter than `length` counts as zero: its factor would overflow float32.
    """
    shortest = length * math.sqrt(torch.finfo(torch.float32).tiny)
    return torch.where(norms > shortest, length / norms.clamp(min=1e-300), 0.0)


def skipped_without_root(updates: Updates) -> Aggregation:
    """The round is skipped: the server has nothing to trust in."""
    return Aggregation(
        torch.zeros(updates.dimension, dtype=updates.dtype),
        weights=torch.zeros(len(updates), dtype=torch.float64),
        skipped="the server's own root update is not finite",
    )
