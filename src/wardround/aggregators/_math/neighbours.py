"""Krum's score and the selections built on it, from a matrix of squared distances."""

from __future__ import annotations

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
    """The places of `count` rows, each the Krum choice among those still left, scored anew after every pick."""
    left = list(range(len(squared_distances)))
    chosen = []
    for _ in range(count):
        best = krum_order(squared_distances[left][:, left], f)[0]
        chosen.append(left.pop(best))
    return chosen


def _sorted_to_others(squared_distances: Tensor) -> Tensor:
    """Row i: the distances of i to all others, ascending."""
    itself = torch.eye(len(squared_distances), dtype=torch.bool)
    return squared_distances.masked_fill(itself, torch.inf).sort(1).values[:, :-1]
