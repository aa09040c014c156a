"""All methods together: mean ranks over blocks, Friedman's test and Nemenyi's critical difference.

Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wardround.analysis.runs import Run
from wardround.analysis.statistics import LEVEL

__all__ = ["FEWEST_BLOCKS", "Ranking", "critical_difference", "rank_methods"]

FEWEST_BLOCKS = 10  # with fewer, Friedman's chi-square approximation is not reliable
FEWEST_METHODS = 3


@dataclass(frozen=True)
class Ranking:
    """Mean ranks by AUROC or C-index (1 is best) over blocks: the same setting, attack and seed for every method."""

    methods: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    blocks: int
    friedman_p: float | None
    """None where there are too few blocks or methods."""
    critical_difference: float | None
    """Methods whose mean ranks are closer than this do not differ at the 5 % level."""
    why_not: str | None

    @property
    def cliques(self) -> list[tuple[str, ...]]:
        """Largest groups of neighbours in rank that do not differ."""
        if self.critical_difference is None:
            return []
        cliques: list[tuple[int, int]] = []
        for i in range(len(self.methods)):
            j = max(
                k
                for k in range(i, len(self.methods))
                if self.mean_ranks[k] - self.mean_ranks[i] < self.critical_difference
            )
            if j > i and (not cliques or j > cliques[-1][1]):
                cliques.append((i, j))
        return [self.methods[i : j + 1] for i, j in cliques]


def critical_difference(methods: int, blocks: int, level: float = LEVEL) -> float:
    r"""Nemenyi's :math:`q_\alpha \sqrt{k(k+1)/(6N)}` with q of the studentised range over √2.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def rank_methods(runs: Sequence[Run]) -> Ranking | None:
    """Rank the methods over every block in which all of them ran; None where nothing can be ranked.

    A method that is missing from most blocks would leave no whole block: methods with less than half of the
    blocks of the most frequent one are left out.
    """
    blocks: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for run in runs:
        if (value := run.quality) is not None:
            blocks[run.setting, run.attack, run.seed][run.method] = value
    counts: dict[str, int] = defaultdict(int)
    for block in blocks.values():
        for method in block:
            counts[method] += 1
    most = max(counts.values(), default=0)
    methods = sorted(method for method, count in counts.items() if 2 * count >= most)
    whole = [[block[m] for m in methods] for block in blocks.values() if all(m in block for m in methods)]
    if len(methods) < 2 or not whole:
        return None
    from scipy import stats

    ranks = stats.rankdata(-np.asarray(whole), axis=1).mean(0)
    order = np.argsort(ranks, kind="stable")
    why_not = None
    if len(methods) < FEWEST_METHODS:
        why_not = f"{len(methods)} methods: Friedman's test needs {FEWEST_METHODS}"
    elif len(whole) < FEWEST_BLOCKS:
        why_not = f"{len(whole)} blocks: Friedman's test needs {FEWEST_BLOCKS} to be trusted"
    p = None if why_not else float(stats.friedmanchisquare(*np.asarray(whole).T).pvalue)
    return Ranking(
        tuple(methods[i] for i in order),
        tuple(float(ranks[i]) for i in order),
        len(whole),
        None if p is None or math.isnan(p) else p,
        None if why_not else critical_difference(len(methods), len(whole)),
        why_not,
    )
