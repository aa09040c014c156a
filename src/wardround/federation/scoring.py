"""What predictions are worth: the metrics of a task, thresholds, and the figures of patient groups.

No figure ends a run: what cannot be computed is NaN, with the reason beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from wardround.datasets.base import Task
from wardround.datasets.patient_groups import UNKNOWN_GROUP
from wardround.federation.ranked_outputs import RankedOutputs
from wardround.metrics import (
    auroc,
    average_precision,
    calibration_bins,
    expected_calibration_error,
)
from wardround.records import CalibrationBin, GroupMetrics, Metrics, Reason
from wardround.survival import concordance, cox_loss
from wardround.training.base import Objective

__all__ = [
    "GROUP_METRICS",
    "METRICS",
    "MIN_GROUP_ROWS",
    "SURVIVAL_METRICS",
    "THRESHOLD_RULE",
    "Measurement",
    "Thresholds",
    "choose_thresholds",
    "gaps_between",
    "group_metric_names",
    "measure",
    "measure_groups",
    "metric_names",
    "metrics_of",
    "rank",
]

METRICS = (
    "auroc", "auprc", "accuracy", "f1", "loss", "sensitivity", "specificity", "brier", "ece", "threshold",
)  # fmt: skip
"""All metrics of an evaluation. Only a binary task has one threshold: a multi-label task has one per finding, a
multi-class task none."""
SURVIVAL_METRICS = ("c_index", "loss", "threshold", "brier", "ece")
"""Those of a survival task, of which the last three are not defined: a log hazard is no probability."""
GROUP_METRICS = ("auroc", "accuracy", "f1", "sensitivity", "specificity", "brier")
SURVIVAL_GROUP_METRICS = ("c_index",)
MIN_GROUP_ROWS = 20
"""Test rows below which a patient group has no figures: they would be noise."""
THRESHOLD_RULE = "highest F1 on validation rows"
HALF = 0.5


@dataclass(frozen=True)
class Thresholds:
    """From which probability on an output counts as positive: one per output; none for a multi-class task."""

    values: tuple[float, ...] = ()
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    """Output → why its threshold is one half and not chosen."""

    @classmethod
    def default(cls, outputs: int) -> Thresholds:
        """One half for every output."""
        return cls((HALF,) * outputs)


@dataclass(frozen=True, eq=False)
class Measurement:
    """The figures of a model on some rows."""

    metrics: dict[str, float]
    """NaN where a metric cannot be computed; `reasons` says why."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    calibration: list[CalibrationBin] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    """Finding → threshold, of a multi-label task."""
    groups: dict[str, dict[str, GroupMetrics]] = field(default_factory=dict)
    """The figures of patient groups, where they were asked for; see `measure_groups`."""
    ranked: RankedOutputs | None = field(default=None, repr=False)
    """The rows as they were ranked for these figures, for those of patient groups; None where outputs have no sigmoid
    each, or are not finite."""


def metric_names(task: Task) -> tuple[str, ...]:
    """All metrics of an evaluation of this task."""
    if task is Task.SURVIVAL:
        return SURVIVAL_METRICS
    return METRICS if task is Task.BINARY else METRICS[:-1]


def group_metric_names(task: Task) -> tuple[str, ...]:
    """The metrics of a patient group."""
    return SURVIVAL_GROUP_METRICS if task is Task.SURVIVAL else GROUP_METRICS


def metrics_of(
    logits: Tensor, targets: Tensor, task: Task, thresholds: Thresholds | None = None
) -> dict[str, float]:
    """The metrics of a task; NaN where the targets leave one undefined. See `measure`.

    >>> metrics_of(torch.tensor([[2.0], [-1.0], [1.0]]), torch.tensor([1, 0, 0]), Task.BINARY)["auroc"]
    1.0
    """
    return measure(logits, targets, task, thresholds).metrics


def measure(
    logits: Tensor,
    targets: Tensor,
    task: Task,
    thresholds: Thresholds | None = None,
    class_names: Sequence[str] = (),
    ranked: RankedOutputs | None = None,
) -> Measurement:
    """All figures of some rows.

    Binary: as usual; positive is a probability above the threshold. Multi-class: the most probable class is said;
    Hand & Till's mean over pairs of classes for AUROC, macro averages over classes else. Multi-label: macro averages
    over the findings that occur, mean accuracy per finding.

    The Brier score of a binary task is the mean of (p − y)², of a multi-class task the mean over rows of that sum over
    all classes (0 to 2), of a multi-label task the mean over findings. The calibration curve of a multi-class task is
    that of the most probable class: how sure the model is, and how often it is right.

    Survival: Harrell's C-index and the mean Cox loss of all rows together. Nothing that needs a probability.

    Args:
        logits: n × outputs.
        targets: n class indices; n × findings zeros and ones of a multi-label task; n signed times of a survival task.
        task: what the outputs mean.
        thresholds: above which probability an output is positive; None: one half.
        class_names: for the reasons.
        ranked: what `rank` made of the same rows; None: ranked here.
    """
    names = metric_names(task)
    if not len(targets):
        return _nothing(names, Reason("no-rows", "there are no rows to measure on"))
    logits = logits.double()
    if task is Task.SURVIVAL:
        return _survival(logits.reshape(-1), targets)
    loss = float(Objective(task is Task.MULTICLASS, prepare=lambda stored: stored).loss(logits, targets))
    if task is Task.MULTICLASS:
        probabilities = torch.softmax(logits, 1)
    else:
        probabilities = torch.sigmoid(logits) if ranked is None else torch.from_numpy(ranked.shares)
    if not (math.isfinite(loss) and bool(torch.isfinite(probabilities).all())):
        broken = ~torch.isfinite(probabilities).all(1)
        if not math.isfinite(loss):
            broken |= ~torch.isfinite(logits).all(1)
        if bool(broken.any()):  # a model that was broken has no ranking to measure
            text = f"the model's output is not finite for {int(broken.sum())} of {len(broken)} rows"
            return _nothing(names, Reason("not-finite", text))
    shares, truth = probabilities.numpy(), targets.numpy()
    if task is Task.MULTICLASS:
        figures = _multi_class(shares, truth, class_names)
    else:
        cuts = (thresholds or Thresholds.default(shares.shape[1])).values
        if ranked is None:
            ranked = RankedOutputs(logits.numpy(), shares, truth.reshape(shares.shape) > 0)
        figures = _findings(ranked.cut(cuts), class_names)
        if task is Task.BINARY:
            figures.metrics["threshold"] = cuts[0]
        else:
            figures.thresholds.update(zip(class_names, cuts, strict=False))
        figures.reasons.update(_default_thresholds(thresholds, class_names, task))
    figures.metrics["loss"] = loss
    ordered = {name: figures.metrics[name] for name in names}
    return replace(figures, metrics=ordered)


def choose_thresholds(
    logits: Tensor, targets: Tensor, task: Task, ranked: RankedOutputs | None = None
) -> Thresholds:
    """The threshold of each output with the highest F1 on these (validation) rows; one half where there is none.

    `ranked`: what `rank` made of the same rows; None: ranked here.
    """
    if task in (Task.MULTICLASS, Task.SURVIVAL):
        return Thresholds()
    ranked = ranked or rank(logits, targets, task)
    values: list[float] = []
    reasons: dict[int, Reason] = {}
    for output in range(logits.shape[1]):
        chosen = None
        if not len(targets):
            reasons[output] = Reason("no-rows", "no validation rows to choose it on: one half")
        elif ranked is None:
            reasons[output] = Reason("not-finite", "the model's output on validation rows is not finite")
        elif (chosen := ranked.best_f1_threshold(output)) is None:
            reasons[output] = Reason("one-class", f"{len(targets)} validation rows of one class: one half")
        values.append(HALF if chosen is None else chosen)
    return Thresholds(tuple(values), reasons)


def measure_groups(
    logits: Tensor,
    targets: Tensor,
    task: Task,
    thresholds: Thresholds | None,
    groups: Mapping[str, Mapping[str, np.ndarray]],
    least_rows: int = MIN_GROUP_ROWS,
    class_names: Sequence[str] = (),
    ranked: RankedOutputs | None = None,
) -> dict[str, dict[str, GroupMetrics]]:
    """The figures of every patient group: attribute → group → rows and metrics.

    Args:
        logits: as in `measure`, and so are `targets`, `task`, `thresholds` and `class_names`.
        groups: attribute → group → its rows (see `rows_of_groups`).
        least_rows: a group with fewer rows has no figures, and says so.
        ranked: the rows of `measure` with the same arguments; None: ranked here, where that can be done once for all.
    """
    wanted = group_metric_names(task)
    if ranked is None and bool(torch.isfinite(logits).all()):
        ranked = rank(logits, targets, task)
        if ranked is not None:
            ranked.cut((thresholds or Thresholds.default(logits.shape[1])).values)
    large = [rows for of_group in groups.values() for rows in of_group.values() if len(rows) >= least_rows]
    if ranked is None:
        found = [measure(logits[rows], targets[rows], task, thresholds, class_names) for rows in large]
    else:
        found = [
            Measurement(metrics, _undefined(metrics, ranked.truth, class_names, rows))
            for metrics, rows in zip(ranked.figures_of_groups(large), large, strict=True)
        ]
    of_large = iter(found)
    result: dict[str, dict[str, GroupMetrics]] = {}
    for attribute, of_group in groups.items():
        result[attribute] = {}
        for name, rows in of_group.items():
            figures: dict[str, float | str | None] = {"n": len(rows), **dict.fromkeys(wanted)}
            if len(rows) < least_rows:
                figures["reason"] = f"{len(rows)} rows, fewer than {least_rows}"
            else:
                measured = next(of_large)
                figures |= {metric: _known(measured.metrics[metric]) for metric in wanted}
                missing = [metric for metric in wanted if figures[metric] is None]
                if missing:
                    figures["reason"] = f"{', '.join(missing)}: {measured.reasons[missing[0]].text}"
            result[attribute][name] = figures
    return result


def rank(logits: Tensor, targets: Tensor, task: Task) -> RankedOutputs | None:
    """The rows ranked once for thresholds, figures and groups; None where outputs have no sigmoid each, where one is
    not a number, or without rows."""
    if task not in (Task.BINARY, Task.MULTILABEL) or not len(targets) or bool(torch.isnan(logits).any()):
        return None
    scores = logits.double()
    shares = torch.sigmoid(scores).numpy()
    return RankedOutputs(scores.numpy(), shares, targets.numpy().reshape(shares.shape) > 0)


def gaps_between(groups: Mapping[str, Mapping[str, GroupMetrics]]) -> dict[str, Metrics]:
    """Attribute → metric → largest minus least figure among its groups; None where fewer than two have one.

    >>> gaps_between({"sex": {"F": {"n": 50, "auroc": 0.75}, "M": {"n": 60, "auroc": 0.5}, "unknown": {"auroc": 0.0}}})
    {'sex': {'auroc': 0.25, 'accuracy': None, 'f1': None, 'sensitivity': None, 'specificity': None, 'brier': None}}
    """
    result: dict[str, Metrics] = {}
    for attribute, of_group in groups.items():
        known = [figures for name, figures in of_group.items() if name != UNKNOWN_GROUP]
        gaps: dict[str, float | None] = {}
        survival = any("c_index" in figures for figures in known)
        for metric in SURVIVAL_GROUP_METRICS if survival else GROUP_METRICS:
            values = [value for figures in known if isinstance(value := figures.get(metric), int | float)]
            gaps[metric] = max(values) - min(values) if len(values) > 1 else None
        result[attribute] = gaps
    return result


def _survival(scores: Tensor, targets: Tensor) -> Measurement:
    """C-index and loss of log hazards (n) on signed times (n)."""
    if not bool(torch.isfinite(scores).all()):
        text = f"the model's output is not finite for {int((~torch.isfinite(scores)).sum())} of {len(scores)} rows"
        return _nothing(SURVIVAL_METRICS, Reason("not-finite", text))
    found = concordance(scores.numpy(), targets.double().numpy())
    metrics = dict.fromkeys(SURVIVAL_METRICS, math.nan)
    metrics |= {"c_index": found.index, "loss": float(cox_loss(scores, targets.double()))}
    undefined = Reason("not-defined", "a survival model ranks patients by risk: it gives no probability")
    reasons = dict.fromkeys(SURVIVAL_METRICS[2:], undefined)
    if not found.pairs:
        events = int((~targets.signbit()).sum())
        text = f"of {len(targets)} rows ({events} with an event) no two can be compared: nobody is known to be first"
        reasons["c_index"] = Reason("no-pair", text)
    return Measurement(metrics, reasons)


def _nothing(names: Sequence[str], reason: Reason) -> Measurement:
    return Measurement(dict.fromkeys(names, math.nan), dict.fromkeys(names, reason))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _default_thresholds(
    thresholds: Thresholds | None, class_names: Sequence[str], task: Task
) -> dict[str, Reason]:
    """Why the threshold is one half, in one reason for all findings."""
    if thresholds is None or not thresholds.reasons:
        return {}
    first = next(iter(thresholds.reasons.values()))
    if task is Task.BINARY:
        return {"threshold": first}
    names = [class_names[output] if class_names else str(output) for output in thresholds.reasons]
    return {"threshold": Reason(first.kind, f"{first.text} (for {', '.join(names)})")}


def _findings(ranked: RankedOutputs, class_names: Sequence[str]) -> Measurement:
    """Figures of one or more outputs with a sigmoid each; macro averages over the findings that occur."""
    shares, truth = ranked.shares, ranked.truth
    metrics = ranked.figures()
    curve = calibration_bins(shares.ravel(), truth.ravel())
    metrics["ece"] = expected_calibration_error(curve)
    return Measurement(metrics, _undefined(metrics, truth, class_names), curve, ranked=ranked)


def _undefined(
    metrics: Mapping[str, float],
    truth: np.ndarray,
    class_names: Sequence[str],
    rows: np.ndarray | slice = slice(None),
) -> dict[str, Reason]:
    """Why metrics of these rows are NaN; nothing where none is."""
    names = [name for name, value in metrics.items() if math.isnan(value)]
    return dict.fromkeys(names, _one_class(truth[rows], class_names)) if names else {}


def _one_class(truth: np.ndarray, class_names: Sequence[str]) -> Reason:
    """Why some rows have no rank or rate."""
    if truth.shape[1] > 1:
        text = f"no finding is present in some and absent in others of {len(truth)} rows"
    else:
        only = (class_names or ("negative", "positive"))[int(truth.any())]
        text = f"all {len(truth)} rows are of class '{only}'"
    return Reason("one-class", text)


def _auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    return float(auroc(torch.from_numpy(scores), torch.from_numpy(truth)))


def _multi_class(shares: np.ndarray, truth: np.ndarray, class_names: Sequence[str]) -> Measurement:
    rows, classes = shares.shape
    said = shares.argmax(1)
    present = np.unique(truth)
    hits = np.bincount(truth[said == truth], minlength=classes)
    of_truth, of_said = np.bincount(truth, minlength=classes), np.bincount(said, minlength=classes)
    named = np.flatnonzero(of_truth + of_said)
    others = rows - of_truth[present]
    right_others = others - (of_said - hits)[present]
    curve = calibration_bins(shares.max(1), said == truth)
    happened = np.zeros_like(shares)
    happened[np.arange(rows), truth] = 1
    metrics = {
        "auroc": _hand_till(shares, truth, present),
        "auprc": float(np.mean([average_precision(shares[:, c], truth == c) for c in present])),
        "accuracy": float((said == truth).mean()),
        "f1": float(np.mean(2 * hits[named] / (of_truth + of_said)[named])),
        "sensitivity": float(np.mean(hits[present] / of_truth[present])),
        "specificity": float(np.mean(right_others / others)) if len(present) > 1 else math.nan,
        "brier": float(((shares - happened) ** 2).sum(1).mean()),
        "ece": expected_calibration_error(curve),
    }
    only = class_names[present[0]] if class_names else str(present[0])
    one_class = Reason("one-class", f"all {rows} rows are of class '{only}'")
    return Measurement(metrics, {name: one_class for name, v in metrics.items() if math.isnan(v)}, curve)


def _hand_till(shares: np.ndarray, truth: np.ndarray, present: np.ndarray) -> float:
    """Mean AUROC over pairs of the classes that occur, each ranked by its share among them; NaN for one class."""
    if len(present) < 2:
        return math.nan
    among = shares[:, present] / shares[:, present].sum(1, keepdims=True).clip(1e-300)
    if len(present) == 2:
        return _auroc(among[:, 1], truth == present[1])
    areas = []
    for one, other in itertools.combinations(range(len(present)), 2):
        rows = (truth == present[one]) | (truth == present[other])
        areas.append(
            (
                _auroc(among[rows, one], truth[rows] == present[one])
                + _auroc(among[rows, other], truth[rows] == present[other])
            )
            / 2
        )
    return float(np.mean(areas))
