"""How many clients of a round are Byzantine, from the round alone."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from wardround.aggregators._math.clustering import gap_statistic_clusters, kmeans_on_a_line
from wardround.randomness import numpy_generator

__all__ = ["estimate_byzantine"]

FEWEST = 4
"""Fewer rows have no groups to speak of."""


def estimate_byzantine(squared_distances: Tensor, most: int, round: int) -> int:
    """Count the clients that are farther from the others than one group of honest clients would be.

    A client's score is the median of its distances to the others: with an honest majority, an honest client's is one
    between honest clients. The gap statistic says whether the scores form more than one group; then the higher of two
    (k-means) is counted. This is FLDetector's way to a number of attackers nobody gave (Zhang et al., KDD 2022, section
    4.3), with a score that needs no past. Attackers who are no farther apart than honest clients are not counted.

    Args:
        squared_distances: N × N.
        most: The greatest number that the rule can withstand; a larger count is cut to it.
        round: Names the reference draws of the gap statistic.

    >>> import torch
    >>> places = torch.tensor([0.0, 0.1, 0.2, 0.15, 0.05, 9.0, -9.0])
    >>> estimate_byzantine((places[:, None] - places) ** 2, most=3, round=1)
    2
    """
    n = len(squared_distances)
    if n < FEWEST or most < 1:
        return 0
    distances = squared_distances.sqrt().numpy()
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    scores = np.median(others, axis=1)
    if not np.isfinite(scores).all() or gap_statistic_clusters(scores, numpy_generator("f: auto", round)) < 2:
        return 0
    higher = kmeans_on_a_line(scores, 2)[1][1] == 1
    return min(int(higher.sum()), most)
