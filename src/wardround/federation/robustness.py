"""How robust a rule was in a round, where it is known who attacked."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.compilation import can_compile, compiled_loop
from wardround.updates import Aggregation, Updates

__all__ = ["empirical_kappa"]

COLUMNS = 8_192
"""Looked at together, in float64: few enough for the cache."""
BLOCK = 512
"""Columns that the compiled loop looks at together."""


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
    others = {*attackers, *result.dropped}
    honest = [i for i, client in enumerate(updates.clients) if client not in others]
    if result.skipped is not None or len(honest) < 2 or not isinstance(rows, Tensor):
        return None
    gaps = _gaps_of_loop if _loop() is not None and rows.device.type == "cpu" else _gaps
    off, spread = gaps(rows, honest, result.delta)
    return off / spread if spread > 0 and math.isfinite(off) and math.isfinite(spread) else None


def _gaps(rows: Tensor, honest: list[int], point: Tensor) -> tuple[float, float]:
    """Squared distance of a point from the mean of the honest rows, and these rows' mean squared distance from it."""
    off = spread = 0.0
    for start in range(0, rows.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        wide = rows[:, part].to(torch.float64, copy=True)  # worked on in place
        if len(honest) < len(rows):
            wide = wide[honest]
        mean = wide.mean(0)
        off += float((point[part].double() - mean).square().sum())
        apart = wide.sub_(mean).view(-1)
        spread += float(apart @ apart) / len(honest)
    return off, spread


def _gaps_of_loop(rows: Tensor, honest: list[int], point: Tensor) -> tuple[float, float]:
    """The same in one compiled loop: in a short round torch's operations would take longer than the sums."""
    loop = _loop()
    assert loop is not None
    off, spread = loop(rows.numpy(), np.array(honest), point.to(rows.dtype).numpy())
    return off, spread / len(honest)


@functools.cache
def _loop() -> Callable[..., tuple[float, float]] | None:
    return compiled_loop(_sum_gaps, reorder=True) if can_compile() else None


def _sum_gaps(rows: Any, honest: Any, point: Any) -> tuple[float, float]:
    """‖point − mean‖² and Σ_i ‖rows[i] − mean‖² over the honest rows, in float64."""
    means = np.empty(BLOCK)
    off = spread = 0.0
    for start in range(0, rows.shape[1], BLOCK):
        stop = min(start + BLOCK, rows.shape[1])
        mean, target = means[: stop - start], point[start:stop]
        mean[:] = 0
        for i in honest:
            row = rows[i, start:stop]
            for c in range(stop - start):
                mean[c] += np.float64(row[c])
        for c in range(stop - start):
            mean[c] /= len(honest)
            gap = np.float64(target[c]) - mean[c]
            off += gap * gap
        for i in honest:
            row = rows[i, start:stop]
            for c in range(stop - start):
                apart = np.float64(row[c]) - mean[c]
                spread += apart * apart
    return off, spread
