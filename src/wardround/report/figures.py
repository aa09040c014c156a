"""Figures as plain Plotly descriptions (dicts): no colours of the page in them, only of the data."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from wardround.analysis.runs import Run

__all__ = ["Figure", "anomaly_over_time", "auroc_over_rounds", "who_holds_what"]

# Okabe & Ito's palette: distinct for colour-blind readers, on white and on dark.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
ATTACKER, BENIGN = "#D55E00", "#56B4E9"
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Figure:
    """A plot with the words around it."""

    key: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def auroc_over_rounds(runs: Sequence[Run]) -> Iterable[Figure]:
    """For each setting one curve a method and attack, the mean over seeds (band: lowest to highest)."""
    for number, (setting, members) in enumerate(_grouped(runs, lambda run: run.setting).items()):
        methods = sorted({run.method for run in members})
        attacks = sorted({run.attack for run in members}, key=lambda attack: (attack != "clean", attack))
        traces: list[dict[str, Any]] = []
        for (method, attack), group in sorted(
            _grouped(members, lambda run: (run.method, run.attack)).items()
        ):
            colour = PALETTE[methods.index(method) % len(PALETTE)]
            traces += _curve(
                f"{method}, {attack}", group, colour, DASHES[attacks.index(attack) % len(DASHES)]
            )
        onsets = {
            run.config["attack"]["start"]
            for run in members
            if run.attack != "clean" and run.config["attack"]["start"] > 1
        }
        yield Figure(
            f"auroc-{number}",
            f"AUROC against rounds: {setting}",
            "Area under the ROC curve of the global model on the held-out test patients. "
            + ("The vertical line marks the round in which the attack begins." if onsets else ""),
            traces,
            {
                "xaxis": {"title": {"text": "round"}},
                "yaxis": {"title": {"text": "AUROC (test)"}},
                "shapes": [_onset(onset) for onset in sorted(onsets)],
            },
        )


def _curve(name: str, runs: list[Run], colour: str, dash: str) -> list[dict[str, Any]]:
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for line in run.rounds:
            if line.get("metrics") and line["metrics"]["auroc"] is not None:
                values[line["round"]].append(line["metrics"]["auroc"])
    x = sorted(values)
    line = {
        "type": "scatter", "mode": "lines", "name": name, "legendgroup": name,
        "x": x, "y": [round(fmean(values[r]), 4) for r in x],
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": f"{name}<br>round %{{x}}: %{{y:.3f}}<extra></extra>",
    }  # fmt: skip
    if len(runs) == 1:
        return [line]
    band = {
        "type": "scatter", "mode": "lines", "legendgroup": name, "showlegend": False, "hoverinfo": "skip",
        "x": x + x[::-1], "y": [max(values[r]) for r in x] + [min(values[r]) for r in x[::-1]],
        "fill": "toself", "fillcolor": colour + "22", "line": {"width": 0},
    }  # fmt: skip
    return [band, line]


def anomaly_over_time(runs: Sequence[Run]) -> Iterable[Figure]:
    """For each run whose rule scores its clients: one curve a client, attackers marked, flags as dots."""
    scored = [run for run in runs if any(line.get("score") is not None for line in run.clients)]
    for number, run in enumerate(scored):
        by_client = _grouped(run.clients, lambda line: line["client"])
        traces: list[dict[str, Any]] = []
        shown: set[bool] = set()
        # Attackers last, so that they lie on top.
        for client in sorted(by_client, key=lambda client: (client in run.byzantine, client)):
            attacker = client in run.byzantine
            lines = [line for line in by_client[client] if line.get("score") is not None]
            traces.append(
                {
                    "type": "scatter", "mode": "lines+markers",
                    "name": "Byzantine client" if attacker else "honest client",
                    "legendgroup": str(attacker), "showlegend": attacker not in shown,
                    "x": [line["round"] for line in lines], "y": [line["score"] for line in lines],
                    "line": {"color": ATTACKER if attacker else BENIGN, "width": 2 if attacker else 1},
                    "marker": {
                        "color": ATTACKER if attacker else BENIGN,
                        "symbol": ["x" if line.get("flag") else "circle" for line in lines],
                        "size": [9 if line.get("flag") else 1 for line in lines],
                    },
                    "hovertemplate": f"{client}<br>round %{{x}}: %{{y:.3g}}<extra></extra>",
                }
            )  # fmt: skip
            shown.add(attacker)
        start = run.config["attack"]["start"]
        yield Figure(
            f"anomaly-{number}",
            f"Anomaly of each client: {run.method}, {run.attack}, seed {run.seed}",
            "The rule's own score, higher is more suspicious (logarithmic scale). Orange: Byzantine; "
            "a cross: flagged in that round.",
            traces,
            {
                "xaxis": {"title": {"text": "round"}},
                "yaxis": {"title": {"text": "anomaly score"}, "type": "log"},
                "shapes": [_onset(start)] if run.byzantine and start > 1 else [],
            },
        )


def who_holds_what(runs: Sequence[Run]) -> Iterable[Figure]:
    """For each partition: samples a client and class; Byzantine clients carry a mark."""
    partitions: dict[str, Run] = {}
    for run in runs:
        # The run with the most attackers tells best who they are.
        key = f"{run.setting}, seed {run.seed}"
        if key not in partitions or len(run.byzantine) > len(partitions[key].byzantine):
            partitions[key] = run
    for number, (key, run) in enumerate(sorted(partitions.items())):
        held = run.record["clients"]
        prefix = os.path.commonprefix(list(held))  # noqa: RUF071 - of names, not of paths
        labels = [
            f"{client.removeprefix(prefix)}{' ⚠' if client in run.byzantine else ''}" for client in held
        ]
        yield Figure(
            f"partition-{number}",
            f"Who holds which data: {key}",
            "Training samples of each client by class. ⚠ marks the clients that are Byzantine in attacked runs.",
            [
                {
                    "type": "bar", "name": name, "x": labels, "y": [counts[c] for counts in held.values()],
                    "marker": {"color": PALETTE[c % len(PALETTE)]},
                    "hovertemplate": f"%{{x}}<br>{name}: %{{y}}<extra></extra>",
                }
                for c, name in enumerate(run.record["class_names"])
            ],
            {
                "barmode": "stack",
                "xaxis": {"title": {"text": f"{prefix.rstrip('-_ ') or 'client'}"}, "type": "category"},
                "yaxis": {"title": {"text": "training samples"}},
            },
        )  # fmt: skip


def _onset(round: int) -> dict[str, Any]:
    return {
        "type": "line", "x0": round, "x1": round, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": ATTACKER, "width": 1, "dash": "dot"},
    }  # fmt: skip


def _grouped(items: Sequence[Any], key: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
