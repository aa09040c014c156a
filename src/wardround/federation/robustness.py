"""How robust a rule was in a round, where it is known who attacked."""

from __future__ import annotations

import math
from collections.abc import Collection

from torch import Tensor

from wardround.updates import Aggregation, Updates

__all__ = ["empirical_kappa"]

COLUMNS = 65_536
"""Looked at together, in float64."""


def empirical_kappa(updates: Updates, result: Aggregation, attackers: Collection[str]) -> float | None:
    r"""The robustness coefficient that a rule reached on the updates of one round.

    .. math:: \hat\kappa = \frac{\|\Delta - \bar U_H\|^2}{\frac1{|H|}\sum_{i\in H} \|U_i - \bar U_H\|^2}

    with H the clients that did not attack. A rule is (f, κ)-robust if this is at most κ for every choice of f attackers
    (Allouah et al., "Fixing by Mixing", AISTATS 2023). Sample counts play no part in it.

    Returns:
        κ̂; None where the round was skipped, fewer than two honest rows are there, or these do not differ.

    >>> import torch
    >>> sent = Updates(torch.tensor([[0.0], [2.0], [9.0]]), clients=["a", "b", "x"])
    >>> empirical_kappa(sent, Aggregation(torch.tensor([3.0])), {"x"})
    4.0
    """
    rows = updates.matrix
    honest = [i for i, client in enumerate(updates.clients) if client not in {*attackers, *result.dropped}]
    if result.skipped is not None or len(honest) < 2 or not isinstance(rows, Tensor):
        return None
    off = spread = 0.0
    for start in range(0, rows.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        wide = rows[honest, part].double()
        mean = wide.mean(0)
        off += float((result.delta[part].double() - mean).square().sum())
        spread += float((wide - mean).square().sum()) / len(honest)
    return off / spread if spread > 0 and math.isfinite(off) and math.isfinite(spread) else None
