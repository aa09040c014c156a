"""Measures of predicted probabilities: rank, threshold and calibration. One implementation for all who evaluate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.records import CalibrationBin

__all__ = [
    "auroc",
    "average_precision",
    "best_f1_of_ranked",
    "best_f1_threshold",
    "calibration_bins",
    "expected_calibration_error",
    "rank_figures",
]


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    r"""Share of (positive, negative) pairs that the scores put in order; equal scores count half.

    .. math:: \frac{1}{PN} \sum_{i: y_i = 1} \sum_{j: y_j = 0} [s_i > s_j] + \tfrac12 [s_i = s_j]

    Counts are whole numbers, so the one division rounds once: the result does not depend on the order of samples.

    Args:
        scores: … × n, higher means more likely positive. A pair with a score that is not a number is out of order.
        positive: n bool, which samples are positive.

    Returns:
        One value per row of scores, float64; NaN where all samples are positive or none is.

    >>> auroc(torch.tensor([[0.1, 0.9, 0.5], [0.5, 0.5, 0.5]]), torch.tensor([False, True, True]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    high, low = scores[..., positive].contiguous(), scores[..., ~positive]
    numbers = (~low.isnan()).sum(-1, keepdim=True)
    low = low.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf")).sort(-1).values
    below = torch.searchsorted(low, high)
    not_above = torch.searchsorted(low, high, right=True).minimum(numbers)
    twice = (below + not_above).masked_fill(high.isnan(), 0).sum(-1)
    return twice.double() / 2 / (high.shape[-1] * low.shape[-1])


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    r"""Area under the precision-recall curve as a sum of steps: :math:`\sum_k (R_k - R_{k-1}) P_k`.

    NaN where nothing is positive.

    >>> average_precision(np.array([0.9, 0.5, 0.5, -0.1]), np.array([True, True, False, False]))
    0.8333333333333333
    """
    order = np.argsort(-scores)  # in which order equal scores are makes no difference
    return rank_figures(scores[order], positive[order])[1]


def rank_figures(ranked: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """AUROC and average precision of samples that are ranked already: see `auroc` and `average_precision`.

    Args:
        ranked: n ≥ 1 scores, falling, without NaN.
        positive: n bool, in the same order.

    >>> rank_figures(np.array([0.9, 0.5, 0.5, -0.1]), np.array([True, True, False, False]))
    (0.875, 0.8333333333333333)
    """
    ends, hits = _cumulated(ranked, positive)
    positives, negatives = int(hits[-1]), len(ranked) - int(hits[-1])
    if not positives:
        return math.nan, math.nan
    gained = hits[1:] - hits[:-1]
    precision = float((gained * (hits[1:] / (ends + 1))).sum() / positives)
    if not negatives:
        return math.nan, precision
    # Of each distinct score: negatives ranked above it or equal to it, and above it.
    upto = ends + 1 - hits[1:]
    upto_and_above = upto.copy()
    upto_and_above[1:] += upto[:-1]
    twice = 2 * negatives * positives - int(gained @ upto_and_above)
    return twice / 2 / (positives * negatives), precision


def best_f1_threshold(probabilities: np.ndarray, positive: np.ndarray) -> float | None:
    r"""The threshold t with the highest F1 of the rule "positive above t"; None where there is but one class, or where
    all probabilities are 0.

    .. math:: \arg\max_t \frac{2\,|\{p_i > t\} \cap \{y_i = 1\}|}{|\{p_i > t\}| + |\{y_i = 1\}|}

    It lies half-way between two neighbouring probabilities; of several that are equally good it is the one nearest to
    one half.

    >>> best_f1_threshold(np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True]))
    0.25
    """
    order = np.argsort(-probabilities)  # in which order equal ones are makes no difference
    return best_f1_of_ranked(probabilities[order], positive[order])


def best_f1_of_ranked(ranked: np.ndarray, positive: np.ndarray) -> float | None:
    """The same of probabilities that fall from the first to the last (n, each with whether it is positive)."""
    if positive.all() or not positive.any():
        return None
    ends, hits = _cumulated(ranked, positive)
    ranked = ranked[ends]  # distinct, falling
    f1 = 2 * hits[1:] / (ends + 1 + hits[-1])
    below = np.append(ranked[1:], 0.0)
    halfway = (ranked + below) / 2
    halfway = np.where(halfway < ranked, halfway, below)  # two neighbouring floats have nothing between them
    possible = halfway < ranked  # a probability of 0 is above no threshold
    if not possible.any():
        return None
    best = np.flatnonzero(possible & (f1 == f1[possible].max()))
    return float(halfway[best[np.abs(halfway[best] - 0.5).argmin()]])


def calibration_bins(predicted: np.ndarray, happened: np.ndarray, bins: int = 10) -> list[CalibrationBin]:
    """How often what was predicted with a certain probability came true, in bins of equal width.

    Args:
        predicted: n probabilities.
        happened: n bool, whether it came true.
        bins: number of bins between 0 and 1; a probability on an edge belongs to the lower one.

    >>> [(b.n, b.predicted, b.observed) for b in calibration_bins(np.array([0.2, 0.2, 0.9]), np.array([0, 1, 1]), 2)]
    [(2, 0.2, 0.5), (1, 0.9, 1.0)]
    """
    edges = _edges(bins)
    place = edges[1:-1].searchsorted(predicted)
    counts = np.bincount(place, minlength=bins)
    means = np.bincount(place, predicted, bins) / np.maximum(counts, 1)
    shares = np.bincount(place, happened, bins) / np.maximum(counts, 1)
    return [
        CalibrationBin(
            float(edges[b]), float(edges[b + 1]), int(counts[b]), float(means[b]), float(shares[b])
        )
        for b in np.flatnonzero(counts)
    ]


def expected_calibration_error(curve: Sequence[CalibrationBin]) -> float:
    r"""Mean distance of predicted and observed, weighted by rows: :math:`\sum_b \frac{n_b}{n} |p_b - o_b|`.

    Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.
    """
    whole = sum(one.n for one in curve)
    return sum(one.n * abs(one.predicted - one.observed) for one in curve) / whole if whole else float("nan")


@lru_cache
def _edges(bins: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, bins + 1)


def _cumulated(ranked: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of samples ranked from the highest score down: the last place of each distinct score, and before the first and
    at each of these places how many positives there are so far."""
    is_end = np.ones(len(ranked), dtype=bool)
    np.not_equal(ranked[1:], ranked[:-1], out=is_end[:-1])
    ends = is_end.nonzero()[0]
    hits = np.zeros(len(ends) + 1, dtype=np.int64)
    hits[1:] = positive.cumsum()[ends]
    return ends, hits
