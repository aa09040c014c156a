"""The contents of a report, before they are rendered as a page or as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wardround.analysis import Analysis, Paper, analyze
from wardround.analysis.runs import Run
from wardround.report.comparison_figures import auroc_over_seeds, critical_differences, loss_by_attack
from wardround.report.figures import Figure, auroc_over_rounds, who_holds_what
from wardround.report.run_figures import figures_of_runs, shown_runs

__all__ = ["Contents", "collect"]


@dataclass(frozen=True)
class Contents:
    """Figures over all runs, figures of single runs, and the analysis (None while no run is finished)."""

    runs: Sequence[Run]
    analysis: Analysis | None
    figures: list[Figure]
    single: list[tuple[Run, list[Figure]]]
    combinations: int
    """How many settings, attacks and methods there are; `single` may show fewer."""

    @property
    def all_figures(self) -> list[Figure]:
        return [*self.figures, *(figure for _, figures in self.single for figure in figures)]


def collect(runs: Sequence[Run], papers: Sequence[Paper] = ()) -> Contents:
    """Analyse the runs, with what the papers add, and describe every figure."""
    analysis = analyze(runs, papers=papers) if any(run.finished for run in runs) else None
    measured = [] if analysis is None else analysis.measured
    figures = [
        *auroc_over_rounds(runs),
        *loss_by_attack(measured),
        *auroc_over_seeds(measured),
        *critical_differences(None if analysis is None else analysis.ranking),
        *who_holds_what(runs),
    ]
    combinations = len({(run.setting, run.attack, run.method) for run in runs})
    return Contents(runs, analysis, figures, list(figures_of_runs(shown_runs(runs))), combinations)
