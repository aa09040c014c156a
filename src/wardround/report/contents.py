"""The contents of a report, before they are rendered as a page or as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wardround.analysis import Analysis, Paper, analyze
from wardround.analysis.measures import Measured
from wardround.analysis.runs import Run, quality_name
from wardround.report.calibration import calibration_curves, figures_by_group
from wardround.report.comparison_figures import auroc_over_seeds, critical_differences, loss_by_attack
from wardround.report.figures import Figure, auroc_over_rounds, who_holds_what
from wardround.report.opening import Opening, opening_of
from wardround.report.run_figures import choose_runs, figures_of_runs
from wardround.report.selection import BROAD, NARROW, select

__all__ = ["Contents", "collect"]


@dataclass(frozen=True)
class Contents:
    """Opening, figures over all runs, figures of single runs, and the analysis (None while no run is finished)."""

    runs: Sequence[Run]
    analysis: Analysis | None
    opening: Opening
    figures: list[Figure]
    single: list[tuple[Run, list[Figure]]]
    selection: str
    """Which runs have figures of their own, and how many have none."""
    left_out: int = 0
    """Runs without figures of their own that would have them if every run was asked for."""
    omitted: tuple[str, ...] = ()
    """Sentences about what figures over many runs leave out."""

    @property
    def all_figures(self) -> list[Figure]:
        evidence = [figure for figure in self.opening.figures if figure is not None]
        return [*evidence, *self.figures, *(figure for _, figures in self.single for figure in figures)]


def collect(runs: Sequence[Run], papers: Sequence[Paper] = (), every_run: bool = False) -> Contents:
    """Analyse the runs, with what the papers add, and describe every figure.

    Args:
        runs: Finished and unfinished runs.
        papers: Usually `wardround.protocols.papers()`.
        every_run: Figures for each single run, not only for one seed per setting, attack and method.
    """
    analysis = analyze(runs, papers=papers) if any(run.finished for run in runs) else None
    narrow, broad = select(runs, NARROW), select(runs, BROAD)

    def measured(some: Sequence[Run]) -> list[Measured]:
        shown = set(map(id, some))
        return [] if analysis is None else [m for m in analysis.measured if id(m.run) in shown]

    figures = [
        *auroc_over_rounds(narrow.runs),
        *loss_by_attack(measured(broad.runs)),
        *auroc_over_seeds(measured(narrow.runs)),
        *critical_differences(None if analysis is None else analysis.ranking, quality_name(runs)),
        *calibration_curves(narrow.runs),
        *figures_by_group(narrow.runs),
        *who_holds_what(narrow.runs),
    ]
    shown, selection = choose_runs(runs, every_run)
    single = list(figures_of_runs(shown))
    if without := len(shown) - len(single):
        why = "the rule gives no weights, scores or flags"
        selection += f" {without} of these {'has' if without == 1 else 'have'} none: {why}."
    opening = opening_of(runs, [] if analysis is None else analysis.recommendations)
    omitted = (
        *([f"Figures with a curve, box or mark per rule show {narrow.note}"] if narrow.note else []),
        *([f"Evidence and heat maps show {broad.note}"] if broad.note else []),
    )
    return Contents(runs, analysis, opening, figures, single, selection, len(runs) - len(shown), omitted)
