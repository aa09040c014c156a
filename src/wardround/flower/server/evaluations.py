"""What the hospitals say of the model, combined so that no minority of them moves it far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, get_args

from wardround.datasets.base import Task
from wardround.datasets.patient_groups import in_order
from wardround.federation.clients import Evaluation
from wardround.federation.scoring import METRICS, SURVIVAL_METRICS, gaps_between, group_metric_names
from wardround.flower.messages import CALIBRATION, GROUPS, REASONS, SAMPLES, VALIDATION, Note
from wardround.flower.server.broker import Failure, Reply
from wardround.records import CalibrationBin, EvaluationDetails, GroupMetrics, Reason, ReasonKind
from wardround.updates import MOST_SAMPLES

__all__ = ["combine_evaluations"]

HIGHEST = {"brier": 2.0, "loss": math.inf}
"""The largest possible value of a metric that is no share."""
REASON_TEXTS: dict[ReasonKind, str] = {
    "no-rows": "the hospital has no test rows",
    "few-rows": "the hospital reports nothing of so few rows",
    "one-class": "the hospital's test rows are of one class",
    "no-pair": "no two of the hospital's test rows can be compared",
    "not-defined": "a survival model ranks patients by risk: it gives no probability",
    "not-finite": "the model's output is not finite",
}
MOST_ATTRIBUTES, MOST_GROUPS, MOST_BINS, LONGEST_NAME = 10, 50, 20, 60
"""Of what one hospital says; the rest is not read."""


def combine_evaluations(replies: Mapping[str, Reply], task: Task = Task.BINARY) -> Evaluation:
    """The hospitals' own figures, and their median on test and on validation samples.

    The median, because a hospital can report what it likes: no minority moves it far. So it is with patient groups and
    the bins of the calibration curve; their rows are added up. `task`: what the hospitals predict, which decides what
    they may report.

    >>> from wardround.flower.messages import Note
    >>> replies = {"a": Note({}, {"auroc": 0.7}), "b": Note({}, {"auroc": 0.8}), "c": Note({}, {"auroc": 9e9})}
    >>> combine_evaluations(replies).metrics
    {'auroc': 0.75}
    """
    survival = task is Task.SURVIVAL
    names, main = (SURVIVAL_METRICS, "c_index") if survival else (METRICS, "auroc")
    notes = {client: reply for client, reply in replies.items() if not isinstance(reply, Failure)}
    figures = {
        client: {name: value for name, value in note.metrics.items() if _possible(name, value, names)}
        for client, note in notes.items()
    }
    test = {
        client: {name: value for name, value in own.items() if not name.startswith(VALIDATION)}
        for client, own in figures.items()
    }
    own = {
        client: {
            name.removeprefix(VALIDATION): value for name, value in values.items() if name not in test[client]
        }
        for client, values in figures.items()
    }
    per_client = {client: {name: values.get(name) for name in names} for client, values in test.items()}
    reasons = {client: _reasons(note, test[client], names) for client, note in notes.items()}
    metrics: dict[str, float | None] = dict(_medians(test))
    nobody: dict[str, Reason] = {}
    if notes and main not in metrics:
        first = next((own[main] for own in reasons.values() if main in own), None)
        kind: ReasonKind = "no-rows" if first is None else first.kind
        nobody = {main: Reason(kind, f"no hospital reports one ({REASON_TEXTS[kind]})")}
        metrics = {main: None, **metrics}
    groups = _groups(notes, group_metric_names(task))
    details = EvaluationDetails(
        nobody,
        {client: own for client, own in reasons.items() if own},
        calibration=_calibration(notes),
        groups=groups,
        gaps=gaps_between(groups),
    )
    return Evaluation(metrics or None, _medians(own) or None, per_client or None, details)


def _possible(name: str, value: float, names: Sequence[str]) -> bool:
    kind = name.removeprefix(VALIDATION)
    return kind in names and 0 <= value <= HIGHEST.get(kind, 1.0) and value < math.inf


def _medians(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for own in figures.values() for name in own)
    return {name: median(own[name] for own in figures.values() if name in own) for name in names}


def _reasons(note: Note, known: Mapping[str, float], names: Sequence[str]) -> dict[str, Reason]:
    """Why a hospital has no figure: the kind is the hospital's, the words are ours."""
    said = note.head.get(REASONS)
    kinds = {
        name: kind
        for name, kind in (said.items() if isinstance(said, dict) else ())
        if name in names and kind in get_args(ReasonKind)
    }
    if not known and not note.metrics.get(SAMPLES):
        kinds = dict.fromkeys(names, "few-rows")
    return {name: Reason(kind, REASON_TEXTS[kind]) for name, kind in kinds.items() if name not in known}


def _groups(notes: Mapping[str, Note], names: Sequence[str]) -> dict[str, dict[str, GroupMetrics]]:
    said: dict[tuple[str, str], list[tuple[int, dict[str, float]]]] = {}
    for note in notes.values():
        for attribute, group, rows, figures in _groups_of(note, names):
            said.setdefault((attribute, group), []).append((rows, figures))
    result: dict[str, dict[str, GroupMetrics]] = {}
    ordered = in_order(group for _, group in said)
    for (attribute, group), own in sorted(said.items(), key=lambda item: ordered.index(item[0][1])):
        medians = _medians({str(number): figures for number, (_, figures) in enumerate(own)})
        typical: dict[str, float | None] = {name: medians.get(name) for name in names}
        combined: dict[str, float | str | None] = {
            "n": sum(rows for rows, _ in own), "hospitals": len(own), **typical,
        }  # fmt: skip
        missing = [name for name, value in typical.items() if value is None]
        if missing:
            combined["reason"] = f"{', '.join(missing)}: no hospital reports it"
        result.setdefault(attribute, {})[group] = combined
    return result


def _groups_of(note: Note, names: Sequence[str]) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Attribute, group, rows and figures of what a hospital says, as far as it makes sense."""
    said = note.head.get(GROUPS)
    for attribute, of_group in list(said.items() if isinstance(said, dict) else ())[:MOST_ATTRIBUTES]:
        for group, figures in list(of_group.items() if isinstance(of_group, dict) else ())[:MOST_GROUPS]:
            rows = figures.get("n") if isinstance(figures, dict) else None
            if (
                isinstance(rows, int)
                and _is_count(rows)
                and len(attribute) <= LONGEST_NAME
                and len(group) <= LONGEST_NAME
            ):
                numbers = {name: figures.get(name) for name in names}
                possible = {
                    name: float(value)
                    for name, value in numbers.items()
                    if isinstance(value, int | float) and _possible(name, value, names)
                }
                yield attribute, group, rows, possible


def _calibration(notes: Mapping[str, Note]) -> tuple[CalibrationBin, ...]:
    said: dict[tuple[float, float], list[tuple[int, float, float]]] = {}
    for note in notes.values():
        bins = note.head.get(CALIBRATION)
        for one in (bins if isinstance(bins, list) else [])[:MOST_BINS]:
            if isinstance(one, list) and len(one) == 5 and _is_bin(*one):
                low, high, rows, predicted, observed = one
                said.setdefault((low, high), []).append((rows, predicted, observed))
    return tuple(
        CalibrationBin(low, high, sum(n for n, _, _ in own), median(p for _, p, _ in own),
                       median(o for _, _, o in own))
        for (low, high), own in sorted(said.items())
    )  # fmt: skip


def _is_bin(low: Any, high: Any, rows: Any, predicted: Any, observed: Any) -> bool:
    shares = (low, high, predicted, observed)
    return _is_count(rows) and all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)


def _is_count(rows: Any) -> bool:
    return isinstance(rows, int) and not isinstance(rows, bool) and 1 <= rows <= MOST_SAMPLES
