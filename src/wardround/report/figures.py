"""Figures as plain Plotly descriptions (dicts). They set the colours of the data; the page sets its own.

This module holds their common parts, the curves over rounds, and the partition of the data.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from wardround.analysis.runs import CLEAN, Run, quality_name
from wardround.report.selection import spread

__all__ = [
    "ATTACKER",
    "BENIGN",
    "BROKEN",
    "PALETTE",
    "Figure",
    "auroc_over_rounds",
    "colour_of",
    "grouped",
    "onset_line",
    "titled",
    "truth_mark",
    "who_holds_what",
]

# Okabe & Ito's palette: distinct for colour-blind readers, on white and on dark (its yellow is darkened for that).
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#BBA800")
ATTACKER, BENIGN, BROKEN = "#D55E00", "#56B4E9", "#CC79A7"
DASHES = ("solid", "dash", "dot", "dashdot")
PARTITIONS_SHOWN = 4
BARS_SHOWN = 200  # more bars than this are not told apart, and a browser takes seconds for them
COLOURS_AT_A_GLANCE = 4  # more are hard to distinguish
POINTS_SHOWN = 200  # of a curve: more are not seen on a screen
CURVES_TOGETHER = 8  # more in one figure cannot be distinguished


@dataclass(frozen=True)
class Figure:
    """A plot with its title and caption."""

    key: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


MEANINGS = {
    "AUROC": "Area under the ROC curve",
    "C-index": "Harrell's C-index (pairs of patients whose order of events the model ranks right)",
}


def auroc_over_rounds(runs: Sequence[Run]) -> Iterable[Figure]:
    """One curve per method and attack, the mean over seeds (band: lowest to highest).

    One figure per setting, or per setting and attack where that would be too many curves.
    """
    number = 0
    methods = sorted({run.method for run in runs})
    for members in grouped(runs, lambda run: run.setting).values():
        attacks = sorted({run.attack for run in members}, key=lambda attack: (attack != CLEAN, attack))
        if len({(run.method, run.attack) for run in members}) <= CURVES_TOGETHER:
            parts = [members]
        else:
            parts = [[run for run in members if run.attack == attack] for attack in attacks]
        for some in parts:
            names = [some[0].setting_label, *([some[0].attack_label] if len(parts) > 1 else [])]
            title = ", ".join(name for name in names if name)
            yield _curves(f"auroc-{number}", title, some, methods, attacks if len(parts) == 1 else [])
            number += 1


def _curves(
    key: str, title: str, runs: Sequence[Run], methods: Sequence[str], attacks: Sequence[str]
) -> Figure:
    traces: list[dict[str, Any]] = []
    for (method, attack), group in sorted(grouped(runs, lambda run: (run.method, run.attack)).items()):
        # Dashes distinguish attacks or, in figures of one attack, the later of many methods.
        late = methods.index(method) // COLOURS_AT_A_GLANCE
        dash = DASHES[(attacks.index(attack) if attacks else late) % len(DASHES)]
        name = f"{method}, {group[0].attack_label}" if attacks else method
        traces += _curve(name, group, colour_of(method, methods), dash)
    onsets = {run.onset for run in runs if run.onset is not None and run.onset > 1}
    measure = quality_name(runs)
    thinned = any(len(run.curve) > POINTS_SHOWN for run in runs)
    return Figure(
        key,
        titled(f"{measure} against rounds", title),
        f"{MEANINGS.get(measure, measure)} of the global model on the held-out test patients"
        + (
            ", mean over seeds; the band goes from the lowest to the highest. "
            if len(runs) > len(traces)
            else ". "
        )
        + ("The dotted line marks the round in which the attack begins." if onsets else "")
        + (f" Curves have {POINTS_SHOWN} points, spread over all rounds." if thinned else ""),
        traces,
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": f"{measure} (test)"}},
            "shapes": [onset_line(onset) for onset in sorted(onsets)],
        },
    )


def _curve(name: str, runs: list[Run], colour: str, dash: str) -> list[dict[str, Any]]:
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for number, value in run.curve:
            values[number].append(value)
    x = spread(sorted(values), POINTS_SHOWN)
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
        "x": x + x[::-1], "y": [round(max(values[r]), 4) for r in x] + [round(min(values[r]), 4) for r in x[::-1]],
        "fill": "toself", "fillcolor": colour + "22", "line": {"width": 0},
    }  # fmt: skip
    return [band, line]


def who_holds_what(runs: Sequence[Run]) -> Iterable[Figure]:
    """For each partition: samples per client and class; Byzantine clients are marked."""
    partitions: dict[str, Run] = {}
    for run in runs:
        # The run with the most attackers shows all of them.
        key = f"{run.setting}, seed {run.seed}"
        if key not in partitions or _not_honest(run) > _not_honest(partitions[key]):
            partitions[key] = run
    shown = sorted(partitions.items())
    if len(shown) > PARTITIONS_SHOWN:  # then only the first seed of each setting
        shown = list({run.setting: (key, run) for key, run in reversed(shown)}.values())[::-1]
    for number, (_, run) in enumerate(shown):
        place = f"{run.setting_label}, seed {run.seed}" if run.setting_label else f"seed {run.seed}"
        held: dict[str, list[float]] = run.record["clients"]
        prefix = os.path.commonprefix(list(held))  # noqa: RUF071 - of names, not of paths
        labels = [f"{client.removeprefix(prefix)}{truth_mark(run, client)}" for client in held]
        note = ""
        if len(held) > BARS_SHOWN:
            prefix, (labels, held) = "clients", _means_of_many(held)
            note = f" {len(run.record['clients'])} clients, the largest first: each bar is a mean of some."
        yield Figure(
            f"partition-{number}",
            titled("Who holds which data", place),
            "Training samples of each client by class. ⚠ marks the clients that are Byzantine in attacked "
            f"runs; broken ones are called so.{note}",
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


def _means_of_many(held: Mapping[str, Sequence[float]]) -> tuple[list[str], dict[str, list[float]]]:
    """Labels and mean samples per class of clients of about the same size, the largest first: `BARS_SHOWN` bars."""
    counts = sorted(held.values(), key=sum, reverse=True)
    edges = [round(place * len(counts) / BARS_SHOWN) for place in range(BARS_SHOWN + 1)]
    labels = [f"{first + 1} to {end}" for first, end in pairwise(edges)]
    means = [
        [round(fmean(of_class), 2) for of_class in zip(*counts[first:end], strict=True)]
        for first, end in pairwise(edges)
    ]
    return labels, dict(zip(labels, means, strict=True))


def truth_mark(run: Run, client: str) -> str:
    """What follows a client's name in a figure: who attacks and who is broken, as a simulation knows it."""
    return " ⚠" if client in run.byzantine else " (broken)" if client in run.broken else ""


def _not_honest(run: Run) -> int:
    return len(run.byzantine) + len(run.broken)


def onset_line(round: int) -> dict[str, Any]:
    """A dotted line where the attack begins."""
    return {
        "type": "line", "x0": round, "x1": round, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": ATTACKER, "width": 1, "dash": "dot"},
    }  # fmt: skip


def grouped(items: Sequence[Any], key: Any) -> dict[Any, list[Any]]:
    """Items by key, in the order in which the keys first appear."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def titled(title: str, place: str) -> str:
    """A heading that names what is special about a figure, where there is something."""
    return f"{title}: {place}" if place else title


def colour_of(method: str, methods: Sequence[str]) -> str:
    """The same colour for a method in every figure of a page."""
    return PALETTE[methods.index(method) % len(PALETTE)]
