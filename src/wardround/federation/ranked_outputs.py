"""Outputs with a sigmoid each, ranked once: their figures on all rows, and on any part of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from wardround.metrics import best_f1_of_ranked, best_f1_threshold, rank_figures

__all__ = ["FINDING_METRICS", "RankedOutputs"]

FINDING_METRICS = ("auroc", "auprc", "f1", "sensitivity", "specificity")
"""What each output has; accuracy and Brier score are of all outputs together."""
GROUP_FINDING_METRICS = ("auroc", "f1", "sensitivity", "specificity")
"""What each output has in a part of the rows."""


class RankedOutputs:
    """Predictions of one or more outputs; a run measures many patient groups of the same rows.

    Own implementations, not scikit-learn's: those spend milliseconds on checking what is known to be right.
    """

    def __init__(self, logits: np.ndarray, shares: np.ndarray, truth: np.ndarray) -> None:
        """Rank the rows of every output.

        Args:
            logits: n × outputs, none of which is NaN.
            shares: n × outputs, their probabilities.
            truth: n × outputs bool.
        """
        self.shares, self.truth = shares, truth
        self._errors = (shares - truth) ** 2
        # The order of equal scores changes no figure, and a sort that need not keep it is several times as fast.
        self._orders = [np.argsort(-logits[:, c]) for c in range(logits.shape[1])]
        self._ranked = [(logits[order, c], truth[order, c]) for c, order in enumerate(self._orders)]

    def cut(self, cuts: Sequence[float]) -> RankedOutputs:
        """Let each output say yes above its probability of these; figures are asked for after that."""
        self.said = self.shares > np.asarray(cuts)
        self._right = self.said == self.truth
        return self

    def best_f1_threshold(self, output: int) -> float | None:
        """The threshold of an output with the highest F1 (see `wardround.metrics.best_f1_threshold`)."""
        ranked = self.shares[self._orders[output], output]
        if (ranked[1:] > ranked[:-1]).any():  # rounding has exchanged neighbours
            return best_f1_threshold(self.shares[:, output], self.truth[:, output])
        return best_f1_of_ranked(ranked, self._ranked[output][1])

    def figures(self) -> dict[str, float]:
        """Figures of all rows; NaN where they leave one undefined.

        Those of an output (`FINDING_METRICS`) are the mean over the outputs that occur, if there are several.
        """
        outputs = self.truth.shape[1]
        used = [0] if outputs == 1 else np.flatnonzero(self.truth.any(0)).tolist()
        own = []
        for output in used:
            truth, said = self.truth[:, output], self.said[:, output]
            counts = [int(np.count_nonzero(values)) for values in (truth, said, said & truth)]
            own.append((*rank_figures(*self._ranked[output]), *_rates(len(truth), *counts)))
        metrics = {name: _mean([one[place] for one in own]) for place, name in enumerate(FINDING_METRICS)}
        metrics["accuracy"] = np.count_nonzero(self._right) / self.truth.size
        metrics["brier"] = float(self._errors.sum() / self.truth.size)
        return metrics

    def figures_of_groups(self, groups: Sequence[np.ndarray]) -> list[dict[str, float]]:
        """The same figures of some rows each, without average precision: all groups in a few array operations.

        Args:
            groups: The rows of each group, at least one; groups may overlap.
        """
        if not groups:
            return []
        rows, sizes = np.concatenate(groups), np.array([len(group) for group in groups])
        starts = np.cumsum(sizes) - sizes
        outputs = self.truth.shape[1]
        counts = [
            [
                np.add.reduceat(values[rows, output], starts, dtype=np.int64).tolist()
                for values in self._counted
            ]
            for output in range(outputs)
        ]
        areas = [self._areas(output, rows, sizes, starts, counts[output][0]) for output in range(outputs)]
        result = []
        for group, own_rows in enumerate(groups):
            used = [c for c in range(outputs) if outputs == 1 or counts[c][0][group]]
            own = [
                (areas[c][group], *_rates(len(own_rows), *(count[group] for count in counts[c][:3])))
                for c in used
            ]
            metrics = {
                name: _mean([one[place] for one in own]) for place, name in enumerate(GROUP_FINDING_METRICS)
            }
            values = len(own_rows) * outputs
            metrics["accuracy"] = sum(counts[c][3][group] for c in range(outputs)) / values
            metrics["brier"] = float(self._errors[own_rows].sum() / values)
            result.append(metrics)
        return result

    @cached_property
    def _counted(self) -> tuple[np.ndarray, ...]:
        """What is counted per group (n × outputs bool each): positives, those said to be, those rightly so, right."""
        return self.truth, self.said, self.said & self.truth, self._right

    def _areas(
        self, output: int, rows: np.ndarray, sizes: np.ndarray, starts: np.ndarray, positives: Sequence[int]
    ) -> list[float]:
        """The AUROC of every group: see `rank_figures`, whose whole numbers are added up here for all groups."""
        order, (scores, positive) = self._orders[output], self._ranked[output]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first_key = np.repeat(np.arange(len(sizes)) * len(order), sizes)
        ranked = np.sort(first_key + place[rows]) - first_key  # places within each group, rising
        scores, hits = scores[ranked], positive[ranked].cumsum()
        is_end = np.ones(len(rows), dtype=bool)  # of equal scores in a group
        np.not_equal(scores[1:], scores[:-1], out=is_end[:-1])
        is_end[starts[1:] - 1] = True
        ends = is_end.nonzero()[0]
        hits = hits[ends]
        misses = ends + 1 - hits
        gained, upto_and_above = hits.copy(), misses.copy()
        gained[1:] -= hits[:-1]
        upto_and_above[1:] += misses[:-1]
        pairs = gained * upto_and_above
        first_end = np.searchsorted(ends, starts)
        before = np.where(first_end > 0, misses[first_end - 1], 0)  # misses of the groups before
        counted = np.add.reduceat(pairs, first_end) - 2 * before * np.array(positives)
        areas = []
        for size, own, count in zip(sizes.tolist(), positives, counted.tolist(), strict=True):
            others = size - own
            areas.append((2 * own * others - count) / 2 / (own * others) if own and others else math.nan)
        return areas


def _rates(rows: int, positives: int, named: int, hits: int) -> tuple[float, float, float]:
    """F1, sensitivity and specificity of so many rows, positives, rows said to be positive, and rightly so."""
    negatives, both = rows - positives, positives + named
    return (
        2 * hits / both if both else 0.0,
        hits / positives if positives else math.nan,
        (negatives - named + hits) / negatives if negatives else math.nan,
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if len(known) > 1 else known[0] if known else math.nan
