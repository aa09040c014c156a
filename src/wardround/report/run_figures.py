"""Figures of single runs: weight, score and flag of each client over the rounds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from wardround.analysis.runs import CLEAN, Run
from wardround.records import ClientRecord
from wardround.report.figures import ATTACKER, BENIGN, BROKEN, Figure, grouped, onset_line, truth_mark
from wardround.runs.summary import flagged, suppressed

__all__ = ["RUNS_SHOWN", "choose_runs", "figures_of_runs"]

RUNS_SHOWN = 24  # runs with figures of their own: more would make the page too heavy
CLIENTS_SHOWN = 100  # in a figure of a run: a browser draws one curve per client
# What happened to a client in a round, as heights of a stepped colour scale.
FINE, FALSE_ALARM, MISSED, DETECTED, BROKEN_MISSED, BROKEN_FOUND = 0, 1, 2, 3, 4, 5
STEPS = (("honest, left alone", "#DCE6EE"), ("honest, false alarm", "#E69F00"),
         ("attacker, missed", "#D55E00"), ("attacker, found", "#0072B2"))  # fmt: skip
BROKEN_STEPS = (("broken, left alone", "#CC79A7"), ("broken, found", "#009E73"))
"""Beside these where somebody is broken."""


def choose_runs(runs: Sequence[Run], every_run: bool = False) -> tuple[list[Run], str]:
    """Choose the runs that have figures of their own, and say which were left out.

    Without `every_run`: one per setting, attack and method, the first seed; attacked ones first, at most `RUNS_SHOWN`.
    Where there are more, every attack (and none) keeps its first methods: figures of one rule can be compared over all.

    Returns:
        The runs, and a sentence about the choice for the page.
    """
    order = sorted(runs, key=lambda run: (run.attack == CLEAN, run.setting, run.attack, run.method, run.seed))
    if every_run:
        return order, f"All {len(order)} runs." if len(order) > 1 else "One run."
    first: dict[tuple[str, str, str], Run] = {}
    for run in order:
        first.setdefault((run.setting, run.attack, run.method), run)
    places: Counter[tuple[str, str]] = Counter()
    place_of: dict[tuple[str, str, str], int] = {}
    for kind in first:  # by method, within a setting and attack
        place_of[kind] = places[kind[:2]]
        places[kind[:2]] += 1
    kept = set(sorted(first, key=place_of.__getitem__)[:RUNS_SHOWN])  # a stable sort: attacked ones win a tie
    shown = [run for kind, run in first.items() if kind in kept]
    left_out = len(order) - len(shown)
    if not left_out:
        return shown, "All runs."
    kinds = f" (here {len(shown)} of {len(first)})" if len(shown) < len(first) else ""
    return shown, (
        f"The first seed of each setting, attack and method{kinds}; {left_out} of {len(order)} runs are left out. "
        "`wardround report --all` shows every run."
    )


def figures_of_runs(runs: Sequence[Run]) -> Iterable[tuple[Run, list[Figure]]]:
    """For each run the figures that its rule has numbers for."""
    for number, run in enumerate(runs):
        clients = run.clients  # read once: they are not kept in memory
        figures = [
            figure
            for figure in (
                weights_over_time(f"weights-{number}", run, clients),
                detection_timeline(f"timeline-{number}", run, clients),
                anomaly_over_time(f"anomaly-{number}", run, clients),
            )
            if figure is not None
        ]
        if figures:
            yield run, figures


def _name(run: Run) -> str:
    return f"{run.method}, {run.attack_label}, seed {run.seed}"


def _by_client(run: Run, clients: Sequence[ClientRecord]) -> dict[str, list[ClientRecord]]:
    """Records by client; broken ones and attackers last, so that they are drawn on top.

    Of many clients those that took part most often, at most half of them attackers or broken.
    """
    by_client = grouped(clients, lambda record: record.client)
    byzantine, broken = set(run.byzantine), set(run.broken)
    if len(by_client) > CLIENTS_SHOWN:
        often = sorted(by_client, key=lambda client: (-len(by_client[client]), client))
        others = [client for client in often if client in byzantine or client in broken][: CLIENTS_SHOWN // 2]
        honest = [client for client in often if client not in byzantine and client not in broken]
        by_client = {
            client: by_client[client] for client in (*others, *honest[: CLIENTS_SHOWN - len(others)])
        }
    order = sorted(by_client, key=lambda client: (client in byzantine, client in broken, client))
    return {client: by_client[client] for client in order}


def _which(clients: Sequence[ClientRecord]) -> str:
    """A sentence about the clients that a figure leaves out, if any."""
    count = len({record.client for record in clients})
    if count <= CLIENTS_SHOWN:
        return ""
    return (
        f" Of {count} clients the {CLIENTS_SHOWN} that took part most often, at most half of them not honest."
    )


def _kind(run: Run, client: str) -> tuple[str, str]:
    """What a client is in truth, and its colour."""
    if client in run.byzantine:
        return "Byzantine client", ATTACKER
    return ("broken client", BROKEN) if client in run.broken else ("honest client", BENIGN)


def _client_curves(
    run: Run, clients: Sequence[ClientRecord], column: str, marked: bool
) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    shown: set[str] = set()
    for client, own in _by_client(run, clients).items():
        kind, colour = _kind(run, client)
        known = [record for record in own if record.get(column) is not None]
        trace: dict[str, Any] = {
            "type": "scatter", "mode": "lines+markers" if marked else "lines",
            "name": kind, "legendgroup": kind, "showlegend": kind not in shown,
            "x": [record.round for record in known], "y": [float(f"{record[column]:.4g}") for record in known],
            "line": {"color": colour, "width": 1 if colour == BENIGN else 2},
            "hovertemplate": f"{client}<br>round %{{x}}: %{{y:.3g}}<extra></extra>",
        }  # fmt: skip
        if marked:
            trace["marker"] = {
                "color": colour,
                "symbol": ["x" if record.flag else "circle" for record in known],
                "size": [9 if record.flag else 1 for record in known],
            }
        traces.append(trace)
        shown.add(kind)
    return traces


def _onsets(run: Run) -> list[dict[str, Any]]:
    return [onset_line(run.onset)] if run.onset is not None and run.onset > 1 else []


def weights_over_time(key: str, run: Run, clients: Sequence[ClientRecord]) -> Figure | None:
    """Each client's share of the aggregate (the DOS paper's figure 3); None where the rule has no shares."""
    if not any(record.weight is not None for record in clients):
        return None
    return Figure(
        key,
        f"Weight of each client: {_name(run)}",
        f"The share that each client has in the aggregated update. Orange-red: Byzantine.{_which(clients)}",
        _client_curves(run, clients, "weight", marked=False),
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": "share of the update"}, "rangemode": "tozero"},
            "shapes": _onsets(run),
        },
    )


def anomaly_over_time(key: str, run: Run, clients: Sequence[ClientRecord]) -> Figure | None:
    """The rule's score of each client, flags as crosses; None where the rule has no scores."""
    if not any(record.score is not None for record in clients):
        return None
    return Figure(
        key,
        f"Anomaly of each client: {_name(run)}",
        "The rule's own score, higher is more suspicious (logarithmic scale). Orange-red: Byzantine; "
        f"a cross: flagged in that round.{_which(clients)}",
        _client_curves(run, clients, "score", marked=True),
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": "anomaly score"}, "type": "log"},
            "shapes": _onsets(run),
        },
    )


def detection_timeline(key: str, run: Run, clients: Sequence[ClientRecord]) -> Figure | None:
    """Client × round: who was flagged (or suppressed, where the rule has no flags), rightly or not."""
    verdicts = flagged(clients)
    by_flag = any(verdict is not None for verdict in verdicts)
    if not by_flag:
        verdicts = suppressed(clients)
        if all(verdict is None for verdict in verdicts):
            return None
    rounds = sorted({record.round for record in clients})
    names = list(_by_client(run, clients))
    prefix = os.path.commonprefix(names)  # noqa: RUF071 - of names, not of paths
    heights: dict[tuple[str, int], int] = {}
    for record, verdict in zip(clients, verdicts, strict=True):
        if verdict is not None:
            right, wrong = (DETECTED, MISSED) if record.attacking else (FALSE_ALARM, FINE)
            if record.failing:
                right, wrong = BROKEN_FOUND, BROKEN_MISSED
            heights[record.client, record.round] = right if verdict else wrong
    steps = (*STEPS, *BROKEN_STEPS) if run.broken else STEPS
    scale = [[(i + end) / len(steps), colour] for i, (_, colour) in enumerate(steps) for end in (0, 1)]
    what = "flagged" if by_flag else "given less than a tenth of an equal share (the rule raises no flags)"
    return Figure(
        key,
        f"Who was found when: {_name(run)}",
        f"Each row a client, ⚠ Byzantine; found means {what}. The dotted line marks the onset of the attack."
        + _which(clients),
        [
            {
                "type": "heatmap", "x": rounds,
                "y": [f"{c.removeprefix(prefix)}{truth_mark(run, c)}" for c in names],
                "z": [[heights.get((client, number)) for number in rounds] for client in names],
                "zmin": -0.5, "zmax": len(steps) - 0.5, "colorscale": scale, "ygap": 1, "hoverongaps": False,
                "colorbar": {"tickvals": list(range(len(steps))), "ticktext": [name for name, _ in steps],
                             "outlinewidth": 0},
                "hovertemplate": "%{y}, round %{x}<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"title": {"text": prefix.rstrip("-_ ") or "client"}, "type": "category"},
            "shapes": _onsets(run),
        },
    )  # fmt: skip
