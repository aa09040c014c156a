"""The evidence for a recommendation as one table: what each rule reached without an attack and under each one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from wardround.analysis.recommendation import Recommendation
from wardround.analysis.rendering import Cell, Table, plus_minus
from wardround.analysis.runs import CLEAN
from wardround.analysis.statistics import describe

__all__ = ["evidence_table"]

COLUMNS_PER_ATTACK = 3  # with more attacks, the table shows their mean and the worst


def evidence_table(recommendation: Recommendation) -> Table | None:
    """What each compared rule reached, best worst case first; None where nothing was compared."""
    standings = recommendation.standings
    if not standings:
        return None
    clean = [CLEAN] if CLEAN in standings[0].values else []
    attacks = [condition for condition in standings[0].values if condition != CLEAN]
    few = len(attacks) <= COLUMNS_PER_ATTACK
    columns = ["rule", *("without attack" for _ in clean)]
    columns += attacks if few else [f"mean of {len(attacks)} attacks"]
    columns += (["worst case"] if few else ["worst case", "worst attack"]) if attacks else []
    rows: list[list[Cell]] = []
    for standing in standings:
        shown = [standing.values[condition] for condition in (*clean, *(attacks if few else ()))]
        shown += [] if few else [_mean_by_seed([standing.values[attack] for attack in attacks])]
        shown += [standing.worst] if attacks else []
        row: list[Cell] = [standing.method, *(_mean_sd(values) for values in shown)]
        rows.append(row if few else [*row, standing.worst_attack])
    seeds = len(recommendation.seeds)
    spread = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"
    notes = [f"{recommendation.measure} on the test patients after the last round{spread}."]
    if attacks:
        notes[0] += " Worst case: the lowest value of the row in each seed."
    if recommendation.left_out:
        names = ", ".join(recommendation.left_out)
        notes.append(f"Not compared, because they did not run under all of this with all seeds: {names}.")
    return Table("evidence", "What each rule keeps", columns, rows, tuple(notes))


def _mean_by_seed(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(fmean(of_seed) for of_seed in zip(*values, strict=True))


def _mean_sd(values: Sequence[float]) -> str | None:
    description = describe(values)
    return None if description is None else plus_minus(description.mean, description.sd)
