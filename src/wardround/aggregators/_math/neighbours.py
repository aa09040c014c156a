"""Krum's score and the selections built on it, from a matrix of squared distances."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["krum_order", "krum_scores", "repeated_krum"]


def krum_scores(squared_distances: Tensor, f: int) -> Tensor:
    """Sum each row's squared distances to its N−f−2 nearest others (to one at least).

    Args:
        squared_distances: N × N.
        f: Byzantine clients to withstand.

    Returns:
        N scores; the lowest is Krum's choice.

    >>> krum_scores(torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]), f=0)
    tensor([1., 1., 4.])
    """
    n = len(squared_distances)
    if n == 1:
        return torch.zeros(1, dtype=squared_distances.dtype)
    return _sorted_to_others(squared_distances)[:, : max(1, n - f - 2)].sum(1)


def krum_order(squared_distances: Tensor, f: int) -> list[int]:
    """The places of the rows from the least to the greatest Krum score (arguments as of `krum_scores`).

    The two nearest neighbours of a round often share their score; the smaller total distance to everyone
    comes first then, so that the choice does not hang on the order of the clients.
    """
    scores = krum_scores(squared_distances, f).tolist()
    totals = _sorted_to_others(squared_distances).sum(1).tolist()
    return sorted(range(len(scores)), key=lambda i: (scores[i], totals[i], i))


def repeated_krum(squared_distances: Tensor, f: int, count: int) -> list[int]:
    """The places of `count` rows, each the Krum choice among those still left, scored anew after every pick.

    Every row's distances are sorted once; what was picked is taken out of all of them.
    """
    n = len(squared_distances)
    order = squared_distances.masked_fill(_itself(n), torch.inf).sort(1)
    near, who = order.values[:, :-1].numpy(), order.indices[:, :-1].numpy()
    left, chosen = np.arange(n), []
    for _ in range(count):
        n = len(left)
        scores = near[:, : max(1, n - f - 2)].sum(1)
        tied = np.flatnonzero(scores == scores.min())
        best = int(tied[near[tied].sum(1).argmin()])
        chosen.append(int(left[best]))
        others = np.arange(n) != best
        left, near, who = left[others], near[others], who[others]
        kept = who != chosen[-1]
        near, who = (values[kept].reshape(n - 1, max(n - 2, 0)) for values in (near, who))
    return chosen


def _itself(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.bool)


def _sorted_to_others(squared_distances: Tensor) -> Tensor:
    """Row i: the distances of i to all others, ascending."""
    return squared_distances.masked_fill(_itself(len(squared_distances)), torch.inf).sort(1).values[:, :-1]
