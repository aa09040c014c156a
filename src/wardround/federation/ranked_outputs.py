"""Outputs with a sigmoid each, ranked once: their figures on all rows, and on any part of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wardround.metrics import rank_figures

__all__ = ["FINDING_METRICS", "RankedOutputs"]

FINDING_METRICS = ("auroc", "auprc", "f1", "sensitivity", "specificity")
"""What each output has; accuracy and Brier score are of all outputs together."""


class RankedOutputs:
    """Predictions of one or more outputs; a run measures many patient groups of the same rows.

    Own implementations, not scikit-learn's: those spend milliseconds on checking what is known to be right.
    """

    def __init__(
        self, logits: np.ndarray, shares: np.ndarray, truth: np.ndarray, cuts: Sequence[float]
    ) -> None:
        """Rank the rows of every output.

        Args:
            logits: n × outputs, finite.
            shares: n × outputs, their probabilities.
            truth: n × outputs bool.
            cuts: per output the probability above which it says yes.
        """
        self.shares, self.truth = shares, truth
        self.said = shares > np.asarray(cuts)
        self._right, self._errors = self.said == truth, (shares - truth) ** 2
        self._orders = [np.argsort(-logits[:, c], kind="stable") for c in range(logits.shape[1])]
        self._ranked = [(logits[order, c], truth[order, c]) for c, order in enumerate(self._orders)]

    def figures(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Figures of some rows (None: all); NaN where they leave one undefined.

        Those of an output (`FINDING_METRICS`) are the mean over the outputs that occur among these rows, if there are
        several.
        """
        truth, said = self._part(self.truth, rows), self._part(self.said, rows)
        outputs = truth.shape[1]
        used = [0] if outputs == 1 else np.flatnonzero(truth.any(0)).tolist()
        inside = None
        if rows is not None:
            inside = np.zeros(len(self.truth), dtype=bool)
            inside[rows] = True
        own = [self._finding(output, truth[:, output], said[:, output], inside) for output in used]
        metrics = {name: _mean([one[place] for one in own]) for place, name in enumerate(FINDING_METRICS)}
        metrics["accuracy"] = np.count_nonzero(self._part(self._right, rows)) / truth.size
        metrics["brier"] = float(self._part(self._errors, rows).sum() / truth.size)
        return metrics

    def _finding(
        self, output: int, truth: np.ndarray, said: np.ndarray, inside: np.ndarray | None
    ) -> tuple[float, float, float, float, float]:
        scores, positive = self._ranked[output]
        if inside is not None:  # what is ranked stays ranked when rows are left out
            kept = inside[self._orders[output]].nonzero()[0]
            scores, positive = scores[kept], positive[kept]
        area, precision = rank_figures(scores, positive)
        positives, named = np.count_nonzero(truth), np.count_nonzero(said)
        negatives, hits = len(truth) - positives, np.count_nonzero(said & truth)
        both = positives + named
        return (
            area,
            precision,
            2 * hits / both if both else 0.0,
            hits / positives if positives else math.nan,
            (negatives - named + hits) / negatives if negatives else math.nan,
        )

    def _part(self, values: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        return values if rows is None else values[rows]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if len(known) > 1 else known[0] if known else math.nan
