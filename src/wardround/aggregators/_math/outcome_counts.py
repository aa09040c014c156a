"""How many patients of each outcome a client counts for, whatever it claims."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["capped_counts"]


def capped_counts(counts: Tensor, holders: Tensor) -> Tensor:
    """Counts (N × C) of which none is above the median of its outcome's holders: a claim buys no more than that.

    >>> counts = torch.tensor([[10.0], [20.0], [9000.0]])
    >>> capped_counts(counts, counts > 0).flatten().tolist()
    [10.0, 20.0, 20.0]
    """
    capped = torch.zeros_like(counts)
    for outcome in range(counts.shape[1]):
        held = holders[:, outcome]
        if bool(held.any()):
            limit = counts[held, outcome].quantile(0.5)
            capped[held, outcome] = counts[held, outcome].clamp(max=float(limit))
    return capped
