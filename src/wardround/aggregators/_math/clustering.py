"""Clusterings of a round's clients: density-based, mean shift, and exact k-means on a line.

N clients are few, so nothing here depends on the number of parameters. scikit-learn is loaded on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["density_clusters", "gap_statistic_clusters", "kmeans_on_a_line", "mean_shift_clusters"]

Vector = NDArray[Any]

MOST_SHIFTS = 300
"""Steps of mean shift at most."""


def density_clusters(
    distances: Vector, min_cluster_size: int, min_samples: int, allow_single_cluster: bool
) -> Vector:
    """HDBSCAN on a matrix of distances.

    Args:
        distances: N × N, symmetric.
        min_cluster_size: Fewer make no cluster.
        min_samples: Neighbours (itself among them) that make a point dense.
        allow_single_cluster: May all points be one cluster?

    Returns:
        N labels; −1 for a point in no cluster. Two points or fewer are one cluster.
    """
    n = len(distances)
    if n < 3 or min_samples > n:
        return np.zeros(n, dtype=int)
    from sklearn.cluster import HDBSCAN

    clusterer = HDBSCAN(
        metric="precomputed",
        min_cluster_size=max(2, min(min_cluster_size, n)),
        min_samples=min_samples,
        allow_single_cluster=allow_single_cluster,
        copy=True,
    )
    labels: Vector = clusterer.fit_predict(np.ascontiguousarray(distances))
    return labels


def mean_shift_clusters(features: Vector) -> Vector:
    """Mean shift with a flat kernel, its bandwidth from the nearer half of the distances.

    Gives what scikit-learn's `MeanShift` with `estimate_bandwidth(quantile=0.5)` and `cluster_all=False` does, for
    all points at once instead of one after the other.

    Args:
        features: N × F values.

    Returns:
        N labels; −1 for a point that is in no cluster. Equal points, or one alone, are one cluster.

    Comaniciu, Meer, "Mean shift: a robust approach toward feature space analysis", IEEE TPAMI 2002.
    """
    n = len(features)
    if n < 2:
        return np.zeros(n, dtype=int)
    near = max(1, int(0.5 * n))
    bandwidth = float(np.partition(_distances(features, features), near - 1, axis=1)[:, near - 1].mean())
    if bandwidth <= 1e-12:
        return np.unique(features.round(9), axis=0, return_inverse=True)[1].reshape(-1)
    means, counts = _shifted(features, bandwidth)
    order = np.lexsort((*means.T[::-1], counts))[::-1]  # the fullest first, then the greatest
    left, centres = means[order], []
    while len(left):
        centres.append(left[0])
        left = left[_distances(left, left[:1])[:, 0] > bandwidth]
    distances = _distances(features, np.array(centres))
    labels: Vector = distances.argmin(1)
    return np.where(distances.min(1) <= bandwidth, labels, -1)


def _shifted(features: Vector, bandwidth: float) -> tuple[Vector, Vector]:
    """Move every point to the mean of the points around it until it stays: distinct ends, and points around each."""
    means, settled = features, []
    for _ in range(MOST_SHIFTS):
        means = np.unique(means, axis=0)  # points that have met go on as one
        around = _distances(means, features) <= bandwidth
        counts = around.sum(1)
        moved = (around @ features) / np.maximum(counts, 1)[:, None]
        still = np.linalg.norm(moved - means, axis=1) <= 1e-3 * bandwidth
        settled.append(np.column_stack([moved, counts])[still])
        means = moved[~still]
        if not len(means):
            break
    else:
        settled.append(np.column_stack([means, counts[~still]]))
    ends = np.unique(np.concatenate(settled), axis=0)
    return ends[:, :-1], ends[:, -1]


def _distances(points: Vector, others: Vector) -> Vector:
    """Euclidean distances of M × F and N × F values: M × N."""
    squared = np.zeros((len(points), len(others)))
    for own, other in zip(points.T, others.T, strict=True):
        squared += (own[:, None] - other) ** 2
    return np.sqrt(squared)


def kmeans_on_a_line(values: Vector, most: int) -> tuple[list[float], list[Vector]]:
    """The best k-means clusterings of numbers for k = 1 … `most`, by dynamic programming.

    Args:
        values: N numbers.
        most: The greatest k, at most N.

    Returns:
        For every k the least sum of squares within clusters, and N labels that rise with the values.
    """
    order = np.argsort(values, kind="stable")
    x, n = np.asarray(values, dtype=float)[order], len(values)
    sums, squares = np.concatenate([[0], np.cumsum(x)]), np.concatenate([[0], np.cumsum(x * x)])

    def within(start: Vector, stop: int) -> Vector:
        count = stop - start
        spread: Vector = squares[stop] - squares[start] - (sums[stop] - sums[start]) ** 2 / count
        return np.maximum(spread, 0)

    best = np.array([np.inf, *(float(within(np.array([0]), stop)[0]) for stop in range(1, n + 1))])
    cuts: list[Vector] = [np.zeros(n + 1, dtype=int)]
    costs = [float(best[n])]
    for k in range(2, most + 1):
        previous, best, cut = best, np.full(n + 1, np.inf), np.zeros(n + 1, dtype=int)
        for stop in range(k, n + 1):
            starts = np.arange(k - 1, stop)
            totals = previous[starts] + within(starts, stop)
            place = int(np.argmin(totals))
            best[stop], cut[stop] = totals[place], starts[place]
        cuts.append(cut)
        costs.append(float(best[n]))
    labels = []
    for k in range(1, most + 1):
        own, stop = np.zeros(n, dtype=int), n
        for level in range(k - 1, -1, -1):
            start = int(cuts[level][stop])
            own[order[start:stop]] = level
            stop = start
        labels.append(own)
    return costs, labels


def gap_statistic_clusters(
    values: Vector, generator: np.random.Generator, most: int = 8, draws: int = 10
) -> int:
    """How many clusters numbers form, by the gap statistic.

    Values are scaled to [0, 1] and compared with uniform draws: the least k with Gap(k) ≥ Gap(k+1) − s(k+1).
    Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via the gap statistic", JRSS B 2001.

    Args:
        values: N numbers.
        generator: Makes the uniform draws.
        most: The greatest number of clusters.
        draws: How many uniform samples.
    """
    low, high = float(np.min(values)), float(np.max(values))
    most = min(most, len(values) - 1)
    if not high > low or most < 2:
        return 1
    tiny = 1e-300

    def logs(sample: Vector) -> Vector:
        return np.log(np.maximum(kmeans_on_a_line(sample, most)[0], tiny))

    own = logs((values - low) / (high - low))
    references = np.stack([logs(generator.uniform(size=len(values))) for _ in range(draws)])
    gaps = np.log(np.exp(references).mean(0)) - own
    spread = np.sqrt(1 + 1 / draws) * references.std(0)
    for k in range(1, most):
        if gaps[k - 1] >= gaps[k] - spread[k]:
            return k
    return most
