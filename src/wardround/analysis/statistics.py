"""Statistics that say what a few seeds can and cannot show.

Tests and powers are scipy's and statsmodels'. What this module adds: the smallest p-value that a test could have
reached with that many seeds stands beside the p-value, and a test that cannot reach the level gives no verdict.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev

import numpy as np

__all__ = [
    "LEVEL",
    "Description",
    "Paired",
    "adjusted",
    "describe",
    "paired",
    "seeds_needed",
    "smallest_wilcoxon_p",
]

LEVEL = 0.05
RESAMPLES = 9999


@dataclass(frozen=True)
class Description:
    """Summary of a few values: mean, standard deviation (n − 1), 95 % percentile bootstrap interval of the mean."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def describe(values: Sequence[float]) -> Description | None:
    """Summarize values; None for no values, no spread and no interval for a single one.

    >>> values = describe([0.7, 0.8, 0.9])
    >>> values.n, round(values.mean, 3), round(values.sd, 3), round(values.low, 3), round(values.high, 3)
    (3, 0.8, 0.1, 0.7, 0.9)
    """
    if not values:
        return None
    if len(values) == 1:
        return Description(1, values[0], None, None, None)
    draws, times = _resamples(len(values))
    means = np.asarray(values, dtype=float)[draws].mean(1)
    order = means.argsort()
    means, places = means[order], times[order].cumsum()

    def quantile(share: float) -> float:
        place = share * (RESAMPLES - 1)
        below, above = means[places.searchsorted([int(place), int(place) + 1], side="right")]
        return float(below + (above - below) * (place - int(place)))

    return Description(
        len(values), fmean(values), stdev(values), quantile(LEVEL / 2), quantile(1 - LEVEL / 2)
    )


@lru_cache(maxsize=64)
def _resamples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of n values out of n with replacement, always the same ones, and how often each came up.

    Thousands of tables' cells ask for them, and of a few seeds only a few draws are different.
    """
    draws = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    return np.unique(np.sort(draws, 1), axis=0, return_counts=True)


def smallest_wilcoxon_p(n: int) -> float:
    """The smallest two-sided p that Wilcoxon's signed-rank test can give for n differences, none of them 0.

    All n differences on one side is one of 2ⁿ equally likely patterns of signs, and its mirror counts too.

    >>> [smallest_wilcoxon_p(n) for n in (1, 3, 5, 6)]
    [1.0, 0.25, 0.0625, 0.03125]
    """
    return min(1.0, 2.0 ** (1 - n))


@dataclass(frozen=True)
class Paired:
    """Two methods on the same seeds: differences are ours minus theirs."""

    n: int
    difference: float
    sd: float | None
    low: float | None
    high: float | None
    """95 % interval of the mean difference by Student's t."""
    wilcoxon_p: float
    smallest_p: float
    """The smallest p that Wilcoxon's test can reach with this many differences that are not 0."""
    t_p: float | None
    cohens_d: float | None
    """Mean difference over the standard deviation of the differences; None where that is 0."""
    above: int
    below: int
    """In how many seeds ours was larger, and smaller."""

    @property
    def can_decide(self) -> bool:
        """Whether any outcome of this many seeds could have been significant."""
        return self.smallest_p <= LEVEL

    @property
    def p_in_words(self) -> str:
        """The p-value, or why no p-value is meaningful."""
        if self.above + self.below == 0:
            return f"no difference in any of {self.n} seeds"
        if not self.can_decide:
            seeds = self.above + self.below
            return (
                f"{seeds} {'seed' if seeds == 1 else 'seeds'}: smallest possible p is {self.smallest_p:.4g}"
            )
        return f"{self.wilcoxon_p:.4f}"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired | None:
    """Wilcoxon's signed-rank test and the paired t-test on values of the same seeds, in the same order.

    Differences of exactly 0 count for neither side (Wilcoxon's own treatment).

    >>> test = paired([0.80, 0.82, 0.85], [0.70, 0.73, 0.71])
    >>> round(test.difference, 3), test.wilcoxon_p, test.smallest_p, test.p_in_words
    (0.11, 0.25, 0.25, '3 seeds: smallest possible p is 0.25')
    """
    if len(ours) != len(theirs):
        raise ValueError(f"pairs need two lists of one length, got {len(ours)} and {len(theirs)}")
    if not ours:
        return None
    from scipy.special import stdtr

    # Differences below the last bits of a metric are no differences.
    differences = np.round(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float), 12)
    n, mean = len(differences), float(differences.mean())
    sd = float(differences.std(ddof=1)) if n > 1 else None
    moved = differences[differences != 0]
    t_p = low = high = cohens_d = None
    if sd is not None and sd > 1e-12:
        t_p = float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / sd))
        half = _critical_t(n) * sd / math.sqrt(n)
        low, high, cohens_d = mean - half, mean + half, mean / sd
    return Paired(
        n, mean, sd, low, high, _wilcoxon_p(moved), smallest_wilcoxon_p(len(moved)), t_p, cohens_d,
        int((moved > 0).sum()), int((moved < 0).sum()),
    )  # fmt: skip


def _wilcoxon_p(differences: np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test for differences of which none is 0.

    The test sees only signs and the order of sizes, so of a few seeds there are few different questions.
    """
    if not len(differences):
        return 1.0
    ranks = np.unique(np.abs(differences), return_inverse=True)[1] + 1  # equals share one
    return _wilcoxon_p_of_ranks(tuple(sorted((np.sign(differences) * ranks).tolist(), key=abs)))


@lru_cache(maxsize=4096)
def _wilcoxon_p_of_ranks(signed_ranks: tuple[float, ...]) -> float:
    from scipy import stats

    return float(stats.wilcoxon(signed_ranks).pvalue)


@lru_cache(maxsize=1024)
def _critical_t(n: int) -> float:
    """Student's t that n values exceed with a probability of LEVEL, on either side."""
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / 2, n - 1))


def adjusted(p_values: Sequence[float], method: str = "holm") -> list[float]:
    """p-values of one family of tests, corrected by `holm` or `bonferroni`.

    Not by statsmodels: its Holm collects the garbage of the whole process in every call.

    >>> [round(p, 3) for p in adjusted([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    if not p_values:
        return []
    if method not in ("holm", "bonferroni"):
        raise ValueError(f"correction must be holm or bonferroni, got {method!r}")
    p, n = np.asarray(p_values, dtype=float), len(p_values)
    if method == "bonferroni":
        return [float(value) for value in np.minimum(n * p, 1)]
    order = np.argsort(p)
    corrected = np.empty(n)
    corrected[order] = np.minimum(np.maximum.accumulate(np.arange(n, 0, -1) * p[order]), 1)
    return [float(value) for value in corrected]


def seeds_needed(
    effect: float = 0.5, power: float = 0.8, level: float = LEVEL, most: int = 1000
) -> int | None:
    """How many seeds a two-sided paired t-test needs to find an effect (Cohen's d of the differences).

    None where `most` are not enough. A larger effect needs no more seeds: between two effects that need the same
    number, nothing is computed anew.

    >>> seeds_needed(0.5), seeds_needed(50.0), seeds_needed(0.001)
    (34, 2, None)
    """
    known = _SEEDS_NEEDED.setdefault((power, level, most), [(0.0, None), (math.inf, FEWEST_SEEDS)])
    place = bisect_left(known, abs(effect), key=lambda one: one[0])
    if place and known[place - 1][1] == known[place][1]:
        return known[place][1]
    seeds = _seeds_needed(abs(effect), power, level, most)
    known.insert(place, (abs(effect), seeds))
    return seeds


FEWEST_SEEDS = 2
_SEEDS_NEEDED: dict[tuple[float, float, int], list[tuple[float, int | None]]] = {}
"""What is asked for → effects in rising order with the seeds that they need."""


def _seeds_needed(effect: float, power: float, level: float, most: int) -> int | None:
    """The number is doubled until the power suffices, then halved in between: statsmodels' own solver looks for a real
    number and finds none for large effects."""
    from scipy import stats
    from statsmodels.stats.power import TTestPower

    def enough(seeds: int) -> bool:
        reached = float(TTestPower().power(effect, seeds, level))
        if math.isnan(reached):  # the noncentral t is too far out to be computed: it lies wholly on one side
            return effect * math.sqrt(seeds) > float(stats.t.ppf(1 - level / 2, seeds - 1))
        return reached >= power

    high = FEWEST_SEEDS
    while not enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    return FEWEST_SEEDS + bisect_left(range(FEWEST_SEEDS, high + 1), True, key=enough)
