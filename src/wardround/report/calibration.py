"""Figures of calibration and patient groups: can the probabilities be trusted, and by whom?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from wardround.analysis.runs import CLEAN, Run, quality_name
from wardround.records import CalibrationBin
from wardround.report.figures import PALETTE, Figure, colour_of, grouped

__all__ = ["calibration_curves", "figures_by_group"]

GREY = "#999999"
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


def calibration_curves(runs: Sequence[Run]) -> Iterable[Figure]:
    """Predicted probability against observed share: one curve per method, without attack where there are such runs."""
    methods = sorted({run.method for run in runs})
    for number, members in enumerate(_by_setting(runs).values()):
        chosen, attack = _calm(members)
        curves = {
            method: pooled([run.details.calibration for run in own])
            for method, own in grouped(chosen, lambda run: run.method).items()
        }
        if not any(curves.values()):
            continue
        traces: list[dict[str, Any]] = [
            {
                "type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "name": "as it should be",
                "line": {"color": GREY, "width": 1, "dash": "dash"}, "hoverinfo": "skip",
            }
        ]  # fmt: skip
        traces += [
            _curve(method, bins, colour_of(method, methods)) for method, bins in curves.items() if bins
        ]
        errors = {
            method: fmean(values)
            for method, own in grouped(chosen, lambda run: run.method).items()
            if (values := [value for run in own if (value := run.final("brier")) is not None])
        }
        scores = ", ".join(f"{method} {value:.3f}" for method, value in sorted(errors.items()))
        yield Figure(
            f"calibration-{number}",
            f"Can the probabilities be trusted? {_where(chosen, attack)}",
            "Patients in bins of predicted probability, and the share of them for whom it came true: on the dashed "
            "line both are the same. Below it risks are exaggerated, above it they are underrated. Larger marks have "
            f"more test patients; all seeds together. Brier score (lower is better): {scores or 'not computed'}.",
            traces,
            {
                "xaxis": {"title": {"text": "predicted probability"}, "range": [-0.02, 1.02]},
                "yaxis": {"title": {"text": "observed share"}, "range": [-0.02, 1.02]},
            },
        )


def figures_by_group(runs: Sequence[Run]) -> Iterable[Figure]:
    """AUROC (or C-index) of every patient group, one mark per method; without attack where there are such runs."""
    methods = sorted({run.method for run in runs})
    for number, members in enumerate(_by_setting(runs).values()):
        chosen, attack = _calm(members)
        measure = quality_name(chosen)
        values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        rows: dict[str, list[float]] = defaultdict(list)
        for run in chosen:
            for attribute, groups in run.details.groups.items():
                for group, figures in groups.items():
                    name = f"{attribute}: {group}"
                    if isinstance(n := figures.get("n"), int):
                        rows[name].append(n)
                    if isinstance(area := figures.get(run.main), float):
                        values[run.method][name].append(area)
        names = [name for name in rows if any(name in own for own in values.values())]
        if not names:
            continue
        labels = {name: f"{name} ({fmean(rows[name]):.0f})" for name in names}
        missing = sorted(set(rows) - set(names))
        without = (
            f" Without a figure, for lack of rows or of a class: {', '.join(missing)}." if missing else ""
        )
        yield Figure(
            f"groups-{number}",
            f"For whom is the model worse? {_where(chosen, attack)}",
            f"{measure} on the test patients of each group (their number in brackets) after the last round, mean over "
            f"seeds; right is better.{without}",
            [
                {
                    "type": "scatter", "mode": "markers", "name": method,
                    "x": [round(fmean(own[name]), 4) if own.get(name) else None for name in names],
                    "y": [labels[name] for name in names],
                    "marker": {"color": colour_of(method, methods), "size": 10,
                               "symbol": SYMBOLS[methods.index(method) // len(PALETTE) % len(SYMBOLS)]},
                    "hovertemplate": f"{method}<br>%{{y}}: %{{x:.3f}}<extra></extra>",
                }
                for method, own in sorted(values.items())
            ],
            {
                "xaxis": {"title": {"text": f"{measure} (test)"}},
                "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            },
        )  # fmt: skip


def pooled(curves: Iterable[Sequence[CalibrationBin]]) -> list[CalibrationBin]:
    """The bins of several runs together, weighted by their rows.

    >>> one, other = CalibrationBin(0.0, 0.1, 10, 0.05, 0.0), CalibrationBin(0.0, 0.1, 30, 0.09, 0.2)
    >>> [(b.n, round(b.predicted, 3), round(b.observed, 3)) for b in pooled([[one], [other]])]
    [(40, 0.08, 0.15)]
    """
    by_edges: dict[tuple[float, float], list[CalibrationBin]] = defaultdict(list)
    for curve in curves:
        for one in curve:
            by_edges[one.low, one.high].append(one)
    result = []
    for (low, high), bins in sorted(by_edges.items()):
        rows = sum(one.n for one in bins)
        predicted = sum(one.n * one.predicted for one in bins) / rows
        result.append(
            CalibrationBin(low, high, rows, predicted, sum(one.n * one.observed for one in bins) / rows)
        )
    return result


def _curve(method: str, bins: Sequence[CalibrationBin], colour: str) -> dict[str, Any]:
    most = max(one.n for one in bins)
    return {
        "type": "scatter", "mode": "lines+markers", "name": method,
        "x": [round(one.predicted, 4) for one in bins], "y": [round(one.observed, 4) for one in bins],
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": [round(5 + 9 * (one.n / most) ** 0.5, 1) for one in bins]},
        "text": [str(one.n) for one in bins],
        "hovertemplate": f"{method}<br>predicted %{{x:.2f}}, observed %{{y:.2f}}, %{{text}} rows<extra></extra>",
    }  # fmt: skip


def _where(runs: Sequence[Run], attack: str) -> str:
    """What differs from other figures of the page: the setting, where there are several, and the attack."""
    return ", ".join(filter(None, (runs[0].setting_label, attack)))


def _by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return grouped([run for run in runs if run.finished], lambda run: run.setting)


def _calm(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """The runs without attack, else those of the first attack, and what it is called."""
    attack = min({run.attack for run in runs}, key=lambda attack: (attack != CLEAN, attack))
    return [run for run in runs if run.attack == attack], "without attack" if attack == CLEAN else attack
