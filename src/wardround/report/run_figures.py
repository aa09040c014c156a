"""Figures of single runs: what the rule thought of each client, round by round."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from wardround.analysis.runs import CLEAN, Run
from wardround.report.figures import ATTACKER, BENIGN, Figure, grouped, onset_line
from wardround.runs.summary import SUPPRESSED_BELOW

__all__ = ["RUNS_SHOWN", "figures_of_runs", "shown_runs"]

RUNS_SHOWN = 24  # runs with figures of their own; a page with more would be too heavy to read
# What happened to a client in a round, as heights of a stepped colour scale.
FINE, FALSE_ALARM, MISSED, FOUND = 0, 1, 2, 3
STEPS = (("honest, left alone", "#DCE6EE"), ("honest, false alarm", "#E69F00"),
         ("attacker, missed", "#D55E00"), ("attacker, found", "#0072B2"))  # fmt: skip


def shown_runs(runs: Sequence[Run]) -> list[Run]:
    """One run a setting, attack and method: the first seed; attacked ones first, at most `RUNS_SHOWN`."""
    first: dict[tuple[str, str, str], Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        first.setdefault((run.setting, run.attack, run.method), run)
    order = sorted(first.values(), key=lambda run: (run.attack == CLEAN, run.setting, run.attack, run.method))
    return order[:RUNS_SHOWN]


def figures_of_runs(runs: Sequence[Run]) -> Iterable[tuple[Run, list[Figure]]]:
    """For each run the figures that its rule has numbers for."""
    for number, run in enumerate(runs):
        lines = run.clients  # read once: they are not kept
        figures = [
            figure
            for figure in (
                weights_over_time(f"weights-{number}", run, lines),
                detection_timeline(f"timeline-{number}", run, lines),
                anomaly_over_time(f"anomaly-{number}", run, lines),
            )
            if figure is not None
        ]
        if figures:
            yield run, figures


def _name(run: Run) -> str:
    return f"{run.method}, {run.attack}, seed {run.seed}"


def _clients_of(run: Run, lines: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Attackers last, so that they lie on top."""
    by_client = grouped(lines, lambda line: line["client"])
    return {c: by_client[c] for c in sorted(by_client, key=lambda client: (client in run.byzantine, client))}


def _client_curves(
    run: Run, lines: Sequence[dict[str, Any]], column: str, marked: bool
) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    shown: set[bool] = set()
    for client, own in _clients_of(run, lines).items():
        attacker = client in run.byzantine
        known = [line for line in own if line.get(column) is not None]
        colour = ATTACKER if attacker else BENIGN
        trace: dict[str, Any] = {
            "type": "scatter", "mode": "lines+markers" if marked else "lines",
            "name": "Byzantine client" if attacker else "honest client",
            "legendgroup": str(attacker), "showlegend": attacker not in shown,
            "x": [line["round"] for line in known], "y": [float(f"{line[column]:.4g}") for line in known],
            "line": {"color": colour, "width": 2 if attacker else 1},
            "hovertemplate": f"{client}<br>round %{{x}}: %{{y:.3g}}<extra></extra>",
        }  # fmt: skip
        if marked:
            trace["marker"] = {
                "color": colour,
                "symbol": ["x" if line.get("flag") else "circle" for line in known],
                "size": [9 if line.get("flag") else 1 for line in known],
            }
        traces.append(trace)
        shown.add(attacker)
    return traces


def _onsets(run: Run) -> list[dict[str, Any]]:
    return [onset_line(run.onset)] if run.onset is not None and run.onset > 1 else []


def weights_over_time(key: str, run: Run, lines: Sequence[dict[str, Any]]) -> Figure | None:
    """Each client's share of the aggregate (the DOS paper's figure 3); None where the rule has no shares."""
    if not any(line.get("weight") is not None for line in lines):
        return None
    return Figure(
        key,
        f"Weight of each client: {_name(run)}",
        "The share that each client has in the aggregated update. Orange-red: Byzantine.",
        _client_curves(run, lines, "weight", marked=False),
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": "share of the update"}, "rangemode": "tozero"},
            "shapes": _onsets(run),
        },
    )


def anomaly_over_time(key: str, run: Run, lines: Sequence[dict[str, Any]]) -> Figure | None:
    """The rule's score of each client, flags as crosses; None where the rule has no scores."""
    if not any(line.get("score") is not None for line in lines):
        return None
    return Figure(
        key,
        f"Anomaly of each client: {_name(run)}",
        "The rule's own score, higher is more suspicious (logarithmic scale). Orange-red: Byzantine; "
        "a cross: flagged in that round.",
        _client_curves(run, lines, "score", marked=True),
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": "anomaly score"}, "type": "log"},
            "shapes": _onsets(run),
        },
    )


def detection_timeline(key: str, run: Run, lines: Sequence[dict[str, Any]]) -> Figure | None:
    """Client × round: who was flagged (or suppressed, where the rule has no flags), rightly or not."""
    by_flag = any(line.get("flag") is not None for line in lines)
    if not by_flag and not any(line.get("weight") is not None for line in lines):
        return None
    present = {number: len(some) for number, some in grouped(lines, lambda line: line["round"]).items()}
    rounds = sorted(present)
    clients = list(_clients_of(run, lines))
    prefix = os.path.commonprefix(clients)  # noqa: RUF071 - of names, not of paths
    heights: dict[tuple[str, int], int] = {}
    for line in lines:
        caught = line.get("flag") if by_flag else _suppressed(line, present[line["round"]])
        if caught is not None:
            right, wrong = (FOUND, MISSED) if line["attacking"] else (FALSE_ALARM, FINE)
            heights[line["client"], line["round"]] = right if caught else wrong
    scale = [[(i + end) / 4, colour] for i, (_, colour) in enumerate(STEPS) for end in (0, 1)]
    what = "flagged" if by_flag else "given less than a tenth of an equal share (the rule raises no flags)"
    return Figure(
        key,
        f"Who was found when: {_name(run)}",
        f"Each row a client, ⚠ Byzantine; found means {what}. The dotted line marks the onset of the attack.",
        [
            {
                "type": "heatmap", "x": rounds,
                "y": [f"{c.removeprefix(prefix)}{' ⚠' if c in run.byzantine else ''}" for c in clients],
                "z": [[heights.get((client, number)) for number in rounds] for client in clients],
                "zmin": -0.5, "zmax": 3.5, "colorscale": scale, "ygap": 1, "hoverongaps": False,
                "colorbar": {"tickvals": [0, 1, 2, 3], "ticktext": [name for name, _ in STEPS], "outlinewidth": 0},
                "hovertemplate": "%{y}, round %{x}<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": prefix.rstrip("-_ ") or "client"}, "type": "category"},
            "shapes": _onsets(run),
        },
    )  # fmt: skip


def _suppressed(line: dict[str, Any], present: int) -> bool | None:
    return None if line.get("weight") is None else line["weight"] < SUPPRESSED_BELOW / present
