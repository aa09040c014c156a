"""Patient groups in the analysis: for whom the model is worse, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Protocol

from wardround.analysis.rendering import Cell, Table, number
from wardround.analysis.runs import Run

__all__ = ["gap_table", "group_measures", "group_table", "worst_gap"]

FIGURES = ("auroc", "c_index", "accuracy", "f1", "sensitivity", "specificity", "brier")
HEADINGS = {"auroc": "AUROC", "c_index": "C-index", "f1": "F1", "brier": "Brier"}
Label = tuple[str, str, str]


class HasRun(Protocol):
    """A run with its measures."""

    run: Run


def worst_gap(run: Run, metric: str) -> float | None:
    """The largest difference of a metric between two groups of one attribute; None where no two have it."""
    gaps = [gap for of_metric in run.details.gaps.values() if (gap := of_metric.get(metric)) is not None]
    return max(gaps, default=None)


def group_measures(run: Run) -> dict[str, float | None]:
    """The measures of a run that compare its patient groups."""
    figures = [own for groups in run.details.groups.values() for own in groups.values()]
    areas = [value for own in figures if isinstance(value := own.get(run.main), float)]
    return {
        f"group_gap_{run.main}": worst_gap(run, run.main),
        "group_gap_sensitivity": worst_gap(run, "sensitivity"),
        f"worst_group_{run.main}": min(areas, default=None),
    }


def group_table(groups: Mapping[Label, Sequence[HasRun]]) -> Table | None:
    """One row per setting, attack, method and patient group: means over seeds."""
    shown_figures = _figures_of(groups)
    rows: list[list[Cell]] = []
    reasons: set[str] = set()
    for label, members in groups.items():
        names = dict.fromkeys(
            (attribute, group)
            for m in members
            for attribute, of_group in m.run.details.groups.items()
            for group in of_group
        )
        for attribute, group in names:
            own = [m.run.details.groups.get(attribute, {}).get(group, {}) for m in members]
            known = [figures for figures in own if figures]
            rows.append(
                [
                    *label,
                    attribute,
                    group,
                    _mean(known, "n", 0),
                    *(_mean(known, name) for name in shown_figures),
                ]
            )
            reasons |= {f"{group}: {figures['reason']}" for figures in known if figures.get("reason")}
    if not rows:
        return None
    headings = [HEADINGS.get(name, name) for name in shown_figures]
    notes = [
        "Test rows of each patient group after the last round, mean over the seeds that have the figure."
    ]
    if reasons:
        shown = sorted(reasons)[:6]
        more = f"; and {len(reasons) - len(shown)} more" if len(reasons) > len(shown) else ""
        notes.append(f"Without a figure: {'; '.join(shown)}{more}.")
    columns = ["setting", "attack", "method", "attribute", "group", "rows", *headings]
    return Table("patient-groups", "Patient groups", columns, rows, tuple(notes), words=5)


def gap_table(groups: Mapping[Label, Sequence[HasRun]]) -> Table | None:
    """One row per setting, attack, method and attribute: the largest minus the least figure of its groups."""
    shown_figures = _figures_of(groups)
    rows: list[list[Cell]] = []
    for label, members in groups.items():
        for attribute in dict.fromkeys(name for m in members for name in m.run.details.gaps):
            own = [m.run.details.gaps.get(attribute, {}) for m in members]
            cells = [_mean(own, name) for name in shown_figures]
            if any(cell is not None for cell in cells):
                rows.append([*label, attribute, *cells])
    if not rows:
        return None
    headings = [HEADINGS.get(name, name) for name in shown_figures]
    note = (
        "Largest minus least figure among the groups of an attribute (sex, age band, site), mean over seeds. Groups of "
        "few rows and patients of unknown group are left out. A gap alone proves no unfairness: case mixes differ."
    )
    columns = ["setting", "attack", "method", "attribute", *headings]
    return Table("group-gaps", "Gaps between patient groups", columns, rows, (note,), words=4)


def _figures_of(groups: Mapping[Label, Sequence[HasRun]]) -> tuple[str, ...]:
    """The figures of the runs' tasks: a survival task has the C-index alone."""
    mains = {m.run.main for members in groups.values() for m in members}
    classes = () if mains == {"c_index"} else FIGURES[2:]
    return (*(name for name in FIGURES[:2] if name in mains), *classes)


def _mean(figures: Sequence[Mapping[str, float | str | None]], name: str, digits: int = 3) -> str | None:
    values = [value for own in figures if isinstance(value := own.get(name), int | float)]
    return number(fmean(values), digits) if values else None
