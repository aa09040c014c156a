"""Output on the terminal: tables and progress bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from wardround.analysis import rendering
from wardround.analysis.rendering import difference, fixed
from wardround.analysis.tables import Comparison
from wardround.progress import Advance, progress

__all__ = ["Advance", "comparison_table", "console", "plain_table", "progress"]

console = Console(highlight=False)


def comparison_table(
    lines: Sequence[Comparison], title: str, labels: Mapping[str, str] | None = None
) -> Table:
    """Methods side by side, one row per method and attack; `labels` are shorter names of attacks."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method")
    table.add_column("attack")
    measure = " or ".join(dict.fromkeys(line.measure for line in lines)) or "AUROC"
    for name in (measure, "lost to the attack", "attackers detected", "false alarms"):
        table.add_column(name, justify="right", no_wrap=name == measure)
    for number, line in enumerate(lines):
        # A rule without flags detects a client by giving it next to no weight.
        mark = "*" if line.verdict == "weights" else ""
        table.add_row(
            line.method,
            (labels or {}).get(line.attack, line.attack),
            _number(line.auroc) + (f" ± {fixed(line.auroc_sd)}" if line.auroc_sd is not None else ""),
            "–" if line.loss_of_auroc is None else difference(line.loss_of_auroc),
            _percent(line.tpr) + (mark if line.tpr is not None else ""),
            _percent(line.fpr) + (mark if line.fpr is not None else ""),
            end_section=number + 1 < len(lines) and lines[number + 1].attack != line.attack,
        )
    if any(line.verdict == "weights" for line in lines):
        table.caption = "* the rule raises no flags: clients given less than a tenth of an equal share"
    return table


def plain_table(table: rendering.Table) -> Table:
    """A table of an analysis on the terminal, with its notes below it."""
    shown = Table(title=table.title, title_justify="left", caption_justify="left")
    for place, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if place < table.words else "right")
    for row in table.rows:
        shown.add_row(*("–" if cell is None else str(cell) for cell in row))
    shown.caption = "\n".join(table.notes)
    return shown


def _number(value: float | None) -> str:
    return "–" if value is None else fixed(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
