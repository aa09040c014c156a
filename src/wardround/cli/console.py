"""Output on the terminal: tables and progress bars; plain lines where the output goes elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wardround.analysis.tables import Comparison

__all__ = ["Advance", "comparison_table", "console", "progress"]

console = Console(highlight=False)


class Advance(Protocol):
    """Updates the display: how much is done in total, and a note beside it."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int, every_seconds: float = 10.0) -> Iterator[Advance]:
    """A bar with the time left on a terminal; a line every few seconds where the output goes elsewhere."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total, note="")
            yield lambda done, note="": bar.update(task, completed=done, note=note)
        return
    last, shown = time.monotonic() - every_seconds, -1

    def plain(done: int, note: str = "") -> None:
        nonlocal last, shown
        if done > shown and (time.monotonic() - last >= every_seconds or done >= total):
            last, shown = time.monotonic(), done
            print(f"{title}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)

    yield plain


def comparison_table(lines: Sequence[Comparison], title: str) -> Table:
    """Methods side by side, one row per method and attack."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method")
    table.add_column("attack")
    for name in ("AUROC", "lost to the attack", "attackers detected", "false alarms"):
        table.add_column(name, justify="right", no_wrap=name == "AUROC")
    for number, line in enumerate(lines):
        # A rule without flags detects a client by giving it next to no weight.
        mark = "*" if line.verdict == "weights" else ""
        table.add_row(
            line.method,
            line.attack,
            _number(line.auroc) + (f" ± {line.auroc_sd:.3f}" if line.auroc_sd is not None else ""),
            _number(line.loss_of_auroc),
            _percent(line.tpr) + (mark if line.tpr is not None else ""),
            _percent(line.fpr) + (mark if line.fpr is not None else ""),
            end_section=number + 1 < len(lines) and lines[number + 1].attack != line.attack,
        )
    if any(line.verdict == "weights" for line in lines):
        table.caption = "* the rule raises no flags: clients given less than a tenth of an equal share"
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
