"""Figures over all runs: what attacks cost, how seeds scatter, which methods differ significantly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from wardround.analysis.measures import Measured
from wardround.analysis.ranking import Ranking
from wardround.analysis.rendering import difference
from wardround.analysis.runs import CLEAN, quality_name
from wardround.report.figures import ATTACKER, PALETTE, Figure, colour_of, grouped, titled
from wardround.report.selection import BROAD

__all__ = ["auroc_over_seeds", "critical_differences", "loss_by_attack"]

# From blue (the attack did no harm) over near white to vermilion (it did); safe for the colour-blind.
DIVERGING = [[0.0, PALETTE[0]], [0.5, "#F2F2F2"], [1.0, ATTACKER]]
GREY = "#999999"
LEAST_RANGE = 0.05  # smaller differences are noise and must not look dramatic


def loss_by_attack(measured: Sequence[Measured]) -> Iterable[Figure]:
    """ΔAUROC (or ΔC-index) as a heatmap method × attack, one figure per setting."""
    attacked = [m for m in measured if m.main("delta_{}") is not None]
    for number, members in enumerate(grouped(attacked, lambda m: m.run.setting).values()):
        measure = quality_name(m.run for m in members)
        methods = sorted({m.run.method for m in members}, reverse=True)
        attacks = sorted({m.run.attack for m in members})
        cells = grouped(members, lambda m: (m.run.method, m.run.attack))
        z = [
            [_mean([m.main("delta_{}") for m in cells.get((method, attack), ())]) for attack in attacks]
            for method in methods
        ]
        names = {m.run.attack: m.run.attack_label for m in members}
        reach = max(LEAST_RANGE, *(abs(v) for row in z for v in row if v is not None))
        yield Figure(
            f"loss-{number}",
            titled("What each attack costs", members[0].run.setting_label),
            f"Δ{measure}: clean minus attacked, same seed, mean over seeds. 0 is no harm; orange-red is harm.",
            [
                {
                    "type": "heatmap", "x": [names[attack] for attack in attacks], "y": methods, "z": z,
                    "zmin": -reach, "zmax": reach, "colorscale": DIVERGING,
                    "text": [["" if value is None else difference(value) for value in row] for row in z],
                    "texttemplate": "%{text}", "xgap": 2, "ygap": 2, "hoverongaps": False,
                    "colorbar": {"title": {"text": f"Δ{measure}"}, "outlinewidth": 0},
                    "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
                }
            ],
            {
                "xaxis": {"type": "category", "showgrid": False},
                "yaxis": {"type": "category", "showgrid": False},
            },
        )  # fmt: skip


def auroc_over_seeds(measured: Sequence[Measured]) -> Iterable[Figure]:
    """Box plots of the final AUROC (or C-index) over seeds, one point per seed; only for settings with several seeds.

    What ran with a single seed has a point and no box.
    """
    methods = sorted({m.run.method for m in measured})
    number = 0
    for members in grouped(measured, lambda m: m.run.setting).values():
        if len({m.run.seed for m in members}) < 2:
            continue
        members = sorted(members, key=lambda m: (m.run.attack != CLEAN, m.run.attack, m.run.seed))
        traces = [
            _box(method, some, colour_of(method, methods))
            for method, some in sorted(grouped(members, lambda m: m.run.method).items())
        ]
        measure = quality_name(m.run for m in members)
        yield Figure(
            f"seeds-{number}",
            titled(f"{measure} over seeds", members[0].run.setting_label),
            f"Test {measure} after the last round; every point is a seed.",
            traces,
            {
                "boxmode": "group",
                "xaxis": {"type": "category"},
                "yaxis": {"title": {"text": f"{measure} (test)"}},
            },
        )
        number += 1


def _box(method: str, members: Sequence[Measured], colour: str) -> dict[str, Any]:
    seeds = grouped(members, lambda m: m.run.attack)
    # Plotly draws a box of a single point as a bar that looks like a result: such a method has points only.
    boxed = all(len(some) > 1 for some in seeds.values())
    return {
        "type": "box", "name": method, "boxpoints": "all", "jitter": 0.3, "pointpos": 0,
        "x": [m.run.attack_label for m in members], "y": [m.main() for m in members],
        "text": [f"seed {m.run.seed}" for m in members],
        "marker": {"color": colour, "size": 5},
        "line": {"color": colour, "width": 1.5 if boxed else 0},
        "fillcolor": f"{colour}55" if boxed else "rgba(0,0,0,0)",
        "hovertemplate": f"{method}, %{{text}}: %{{y:.3f}}<extra></extra>",
    }  # fmt: skip


def critical_differences(ranking: Ranking | None, measure: str = "AUROC") -> Iterable[Figure]:
    """Mean ranks on a line, methods that do not differ joined by a bar.

    No figure without a test, and none of so many methods that nobody could read it: their table has the ranks.
    """
    if ranking is None or ranking.critical_difference is None or len(ranking.methods) > BROAD.methods:
        return
    count = len(ranking.methods)
    half = (count + 1) // 2
    traces: list[dict[str, Any]] = []
    for i, (method, rank) in enumerate(zip(ranking.methods, ranking.mean_ranks, strict=True)):
        left = i < half
        height = -1 - (i if left else count - 1 - i) - len(ranking.cliques)
        end = 0.4 if left else count + 0.6
        traces.append(
            {
                "type": "scatter", "mode": "lines+text", "x": [rank, rank, end], "y": [0, height, height],
                "text": ["", "", f"{method}  {rank:.2f}"], "textposition": "top right" if left else "top left",
                "line": {"color": GREY, "width": 1}, "showlegend": False, "hoverinfo": "skip",
            }
        )  # fmt: skip
    ranks = dict(zip(ranking.methods, ranking.mean_ranks, strict=True))
    for i, clique in enumerate(ranking.cliques):
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": [ranks[clique[0]] - 0.03, ranks[clique[-1]] + 0.03],
                "y": [-0.6 - i] * 2, "line": {"color": PALETTE[0], "width": 6}, "showlegend": False,
                "hovertemplate": " – ".join(clique) + "<extra>no significant difference</extra>",
            }
        )  # fmt: skip
    traces.append(
        {
            "type": "scatter", "mode": "lines+markers+text", "x": [1, 1 + ranking.critical_difference], "y": [1, 1],
            "text": [f"critical difference {ranking.critical_difference:.2f}", ""], "textposition": "top right",
            "line": {"color": ATTACKER, "width": 2}, "marker": {"symbol": "line-ns-open", "size": 9, "color": ATTACKER},
            "showlegend": False, "hoverinfo": "skip",
        }
    )  # fmt: skip
    yield Figure(
        "critical-differences",
        "Which methods can be told apart",
        f"Mean ranks by {measure} over {ranking.blocks} blocks (setting, attack and seed), 1 is best. Methods joined "
        "by a bar do not differ at the 5 % level (Friedman and Nemenyi).",
        traces,
        {
            "xaxis": {"title": {"text": "mean rank"}, "range": [0.2, count + 0.8], "dtick": 1},
            "yaxis": {"visible": False, "range": [-count / 2 - len(ranking.cliques) - 1.2, 2.2]},
        },
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
