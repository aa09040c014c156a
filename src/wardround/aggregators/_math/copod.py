"""COPOD: outlier scores from empirical tail probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["copod_scores"]

Matrix = NDArray[Any]


def copod_scores(features: Matrix) -> Matrix:
    r"""Score how much of an outlier every row is among the rows.

    Per column, with the left and right empirical tail probabilities :math:`F(x) = P(X \le x)` and
    :math:`\bar F(x) = P(X \ge x)`: the tail that the column's skewness points to (both for none), but at least the
    mean of the two, in :math:`-\log`; summed over the columns.

    Args:
        features: N × F values.

    Returns:
        N scores, higher for outliers.

    Li et al., "COPOD: Copula-Based Outlier Detection", ICDM 2020; skewness correction as in PyOD.

    >>> copod_scores(np.array([[0.0], [0.1], [0.2], [9.0]])).round(2).tolist()
    [0.69, 0.49, 0.69, 1.39]
    """
    left, right = -np.log(_tail(features)), -np.log(_tail(-features))
    skewness = _skewness_sign(features)
    towards = np.where(skewness > 0, right, np.where(skewness < 0, left, left + right))
    scores: np.ndarray = np.maximum(towards, (left + right) / 2).sum(axis=1)
    return scores


def _tail(values: Matrix) -> Matrix:
    """P(X ≤ x) of every entry in its column; equal entries share the highest."""
    ordered = np.sort(values, axis=0)
    ranks = [np.searchsorted(ordered[:, k], values[:, k], side="right") for k in range(values.shape[1])]
    return np.stack(ranks, axis=1) / len(values)


def _skewness_sign(values: Matrix) -> Matrix:
    """The sign of each column's third central moment; 0 where the column is constant."""
    mean = values.mean(axis=0)
    centred = values - mean
    third = (centred**3).mean(axis=0)
    constant = (centred**2).mean(axis=0) <= (np.finfo(np.float64).eps * mean) ** 2
    return np.where(constant, 0.0, np.sign(third))
