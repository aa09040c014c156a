"""Clusterings of clients against scikit-learn and by hand."""

import itertools

import numpy as np
import pytest
from sklearn.cluster import KMeans, MeanShift, estimate_bandwidth

from wardround.aggregators._math.clustering import (
    density_clusters,
    gap_statistic_clusters,
    kmeans_on_a_line,
    mean_shift_clusters,
)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_kmeans_on_a_line_is_at_least_as_good_as_scikit_learns(n):
    values = np.random.default_rng(n).normal(size=n)
    costs, labels = kmeans_on_a_line(values, min(n, 5))
    for k, (cost, own) in enumerate(zip(costs, labels, strict=True), start=1):
        theirs = KMeans(n_clusters=k, n_init=10, random_state=0).fit(values[:, None]).inertia_
        assert cost <= theirs + 1e-9
        within = sum(((values[own == c] - values[own == c].mean()) ** 2).sum() for c in range(k))
        assert within == pytest.approx(cost, abs=1e-9)


def test_kmeans_on_a_line_is_the_best_of_all_partitions():
    values = np.array([0.3, 2.0, -1.0, 5.0, 2.2, 0.1])
    best = min(
        sum(
            ((values[np.array(split) == c] - values[np.array(split) == c].mean()) ** 2).sum()
            for c in range(3)
            if (np.array(split) == c).any()
        )
        for split in itertools.product(range(3), repeat=6)
    )
    assert kmeans_on_a_line(values, 3)[0][2] == pytest.approx(best)


def test_labels_rise_with_the_values():
    assert kmeans_on_a_line(np.array([9.0, 0.0, 8.5, 0.5]), 2)[1][1].tolist() == [1, 0, 1, 0]


def test_the_gap_statistic_counts_groups():
    rng = np.random.default_rng(0)
    two = np.concatenate([rng.normal(0, 0.01, 15), rng.normal(1, 0.01, 5)])
    assert gap_statistic_clusters(two, np.random.default_rng(1)) >= 2
    assert gap_statistic_clusters(rng.uniform(size=20), np.random.default_rng(1)) == 1
    assert gap_statistic_clusters(np.ones(20), np.random.default_rng(1)) == 1
    assert gap_statistic_clusters(np.array([1.0, 2.0]), np.random.default_rng(1)) == 1


def test_density_clusters_of_few_points_are_one():
    assert density_clusters(np.zeros((2, 2)), 2, 1, True).tolist() == [0, 0]


def test_a_majority_is_found_and_the_others_are_in_no_cluster():
    points = np.array([0.0, 0.1, 0.2, 0.15, 9.0, -7.0])
    distances = np.abs(points[:, None] - points)
    assert density_clusters(distances, 4, 1, True).tolist() == [0, 0, 0, 0, -1, -1]


def test_mean_shift_of_equal_points():
    assert len(set(mean_shift_clusters(np.ones((5, 3))).tolist())) == 1
    labels = mean_shift_clusters(np.array([[0.0], [0.0], [0.0], [5.0]]))
    assert labels[0] == labels[1] == labels[2] != labels[3]


@pytest.mark.parametrize("n", [5, 12, 40])
def test_mean_shift_is_scikit_learns(n):
    for seed in range(4):
        rng = np.random.default_rng(100 * n + seed)
        features = rng.normal(size=(n, 3)) * 10.0 ** -rng.integers(0, 4)
        if seed % 2:
            features[: n // 3] += 3 * rng.normal(size=3)
        bandwidth = float(estimate_bandwidth(features, quantile=0.5))
        theirs = MeanShift(bandwidth=bandwidth, cluster_all=False).fit_predict(features)
        assert mean_shift_clusters(features).tolist() == theirs.tolist()
