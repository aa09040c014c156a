"""The evidence in one picture: what each rule keeps without an attack and under each one."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from wardround.analysis.recommendation import Recommendation, Standing
from wardround.analysis.rendering import fixed
from wardround.analysis.runs import CHANCE, CLEAN
from wardround.report.figures import ATTACKER, PALETTE, Figure
from wardround.report.selection import BROAD

__all__ = ["evidence_figure"]

GREY = "#999999"
ATTACKS_SHOWN = 3  # with more, their mean and the worst case are shown
WITHOUT = "without attack"
# Colour and symbol of what is without attack, then of each attack.
MARKS = ((PALETTE[0], "circle"), (ATTACKER, "diamond"), (PALETTE[3], "square"), (PALETTE[1], "triangle-up"))
APART = 0.17  # rows: how far the marks of one rule are from each other


def evidence_figure(key: str, recommendation: Recommendation, labels: Mapping[str, str]) -> Figure | None:
    """One row per rule, best worst case on top; a mark per condition, lines from the lowest to the highest seed.

    Args:
        key: Name of the figure on the page.
        recommendation: Whose rules are shown.
        labels: What attacks are called on the page.

    Returns:
        None where no rules were compared.
    """
    if not recommendation.standings:
        return None
    rows = list(reversed(recommendation.standings[: BROAD.methods]))  # the axis counts upwards
    shown = [_shown(standing, labels) for standing in rows]
    conditions = list(shown[0])
    first = 0 if WITHOUT in conditions else 1
    marks = [MARKS[(first + i) % len(MARKS)] for i in range(len(conditions))]
    traces = [_way(row, values) for row, values in enumerate(shown)]
    for number, (condition, (colour, symbol)) in enumerate(zip(conditions, marks, strict=True)):
        shift = ((len(conditions) - 1) / 2 - number) * APART
        traces.append(_trace(condition, [values[condition] for values in shown], rows, shift, colour, symbol))
    seeds = len(recommendation.seeds)
    spread = (
        f"Marks are means over {seeds} seeds, bars go from the lowest to the highest."
        if seeds > 1
        else "One seed."
    )
    lowest = min(min(values) for of_rule in shown for values in of_rule.values())
    highest = max(max(values) for of_rule in shown for values in of_rule.values())
    return Figure(
        key,
        "What each rule keeps",
        f"{recommendation.measure} on the test patients after the last round; right is better, the dashed line is "
        f"chance. {spread}{_which(recommendation)}",
        traces,
        {
            "xaxis": {"title": {"text": f"{recommendation.measure} (test)"},
                      "range": [min(0.48, lowest - 0.02), min(1.0, highest + 0.02)]},
            "yaxis": {
                "tickvals": list(range(len(rows))), "ticktext": [standing.method for standing in rows],
                "range": [-0.6, len(rows) - 0.4], "showgrid": False, "zeroline": False,
            },
            "shapes": [
                {"type": "line", "x0": CHANCE, "x1": CHANCE, "yref": "paper", "y0": 0, "y1": 1,
                 "line": {"color": GREY, "width": 1, "dash": "dash"}}
            ],
            "height": 130 + 46 * len(rows),
        },
    )  # fmt: skip


def _which(recommendation: Recommendation) -> str:
    """A sentence about the rules that the figure leaves out, if any."""
    count = len(recommendation.standings)
    return f" The best {BROAD.methods} of {count} rules." if count > BROAD.methods else ""


def _shown(standing: Standing, labels: Mapping[str, str]) -> dict[str, tuple[float, ...]]:
    """The values per seed by what they are called in the legend."""
    attacks = {c: values for c, values in standing.values.items() if c != CLEAN}
    shown = {WITHOUT: standing.values[CLEAN]} if CLEAN in standing.values else {}
    if len(attacks) <= ATTACKS_SHOWN:
        return shown | {labels.get(attack, attack): values for attack, values in attacks.items()}
    means = tuple(fmean(of_seed) for of_seed in zip(*attacks.values(), strict=True))
    return shown | {f"mean of {len(attacks)} attacks": means, "worst case": standing.worst}


def _way(row: int, values: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """A thin line from the lowest mean of a rule to its highest: what is between is what attacks cost."""
    means = [fmean(of_condition) for of_condition in values.values()]
    return {
        "type": "scatter", "mode": "lines", "x": [min(means), max(means)], "y": [row, row],
        "line": {"color": GREY, "width": 1}, "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip


def _trace(
    name: str,
    values: list[tuple[float, ...]],
    rows: list[Standing],
    shift: float,
    colour: str,
    symbol: str,
) -> dict[str, Any]:
    means = [fmean(of_rule) for of_rule in values]
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": means, "y": [row + shift for row in range(len(rows))],
        "marker": {"color": colour, "symbol": symbol, "size": 11},
        "error_x": {
            "type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 0,
            "array": [max(of_rule) - mean for of_rule, mean in zip(values, means, strict=True)],
            "arrayminus": [mean - min(of_rule) for of_rule, mean in zip(values, means, strict=True)],
        },
        "text": [f"{standing.method}: {fixed(mean)}" for standing, mean in zip(rows, means, strict=True)],
        "hovertemplate": f"%{{text}}<extra>{name}</extra>",
    }  # fmt: skip
