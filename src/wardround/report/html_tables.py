"""Tables of the page: sortable, and readable on a narrow screen.

The first column stays where it is while the rest is moved sideways. Tables with several columns of words become
cards on a narrow screen, one per row, with the heading before each value: so every cell carries its heading.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from wardround.analysis.rendering import Table, difference, fixed
from wardround.analysis.tables import Comparison
from wardround.report.selection import ROWS_SHOWN

__all__ = ["comparison_table", "table"]

SPREAD = "± sd"
HEADINGS = (
    ("method", "the aggregation rule"),
    ("{}", "test {} after the last round, mean over seeds"),
    (SPREAD, "standard deviation over seeds"),
    ("Δ{}", "what the attack cost: clean minus attacked, same seeds"),
    ("detected", "attacking client-rounds flagged (or weighted below a tenth of an equal share)"),
    ("false alarms", "honest client-rounds flagged (or weighted below a tenth of an equal share)"),
    ("seeds", "finished runs in this row"),
)
EPSILON = ("ε", "privacy budget spent by the whole run, the largest over seeds")
NO_FLAGS = "* the rule raises no flags: clients given less than a tenth of an equal share"


def table(content: Table) -> str:
    """A table of the analysis, without columns of words that are the same in all rows; of many rows the first."""
    constant = [
        i
        for i in range(content.words - 1)
        if len(content.rows) > 1 and len({str(row[i]) for row in content.rows}) == 1
    ]
    kept = [i for i in range(len(content.columns)) if i not in constant]
    words = content.words - len(constant)
    head = "".join(_heading(content.columns[i], place < words) for place, i in enumerate(kept))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{" class=word" if place < words else ""} data-label="{html.escape(content.columns[i])}">'
            f"{html.escape(_text(row[i]))}</td>"
            for place, i in enumerate(kept)
        )
        + "</tr>"
        for row in content.rows[:ROWS_SHOWN]
    )
    notes = [*rows_left_out(len(content.rows)), *content.notes]
    if constant:
        notes.insert(0, f"All rows: {', '.join(str(content.rows[0][i]) for i in constant)}.")
    kind = "cards" if words > 1 else "sticky"
    return _framed(head, f"<tbody>{body}</tbody>", kind) + "".join(
        f"<p>{html.escape(note)}</p>" for note in notes
    )


def rows_left_out(rows: int) -> list[str]:
    """A sentence about the rows of a table that the page does not have, if any."""
    if rows <= ROWS_SHOWN:
        return []
    return [
        f"The first {ROWS_SHOWN} of {rows} rows; `wardround analyze RUNS --out TABLES` writes all of them."
    ]


def comparison_table(lines: Sequence[Comparison], labels: dict[str, str]) -> str:
    """Rules side by side, one group of rows per attack; `labels` are what attacks are called on the page.

    Of many rows the first ones.
    """
    left_out = "".join(f"<p>{html.escape(note)}</p>" for note in rows_left_out(len(lines)))
    lines = lines[:ROWS_SHOWN]
    private = any(line.epsilon is not None for line in lines)
    spread = any(line.auroc_sd is not None for line in lines)
    measure = " or ".join(dict.fromkeys(line.measure for line in lines)) or "AUROC"
    headings = [
        (name.format(measure), hint.format(measure)) for name, hint in HEADINGS if spread or name != SPREAD
    ]
    headings += [EPSILON] if private else []
    head = "".join(_heading(name, place == 0, hint) for place, (name, hint) in enumerate(headings))
    by_attack: dict[str, list[Comparison]] = {}
    for line in lines:
        by_attack.setdefault(line.attack, []).append(line)
    bodies = "".join(
        f'<tbody><tr class="group"><th colspan="{len(headings)}" scope="rowgroup">'
        f"<span>{html.escape(labels.get(attack, attack))}</span></th></tr>"
        + "".join(_row(line, private, spread) for line in some)
        + "</tbody>"
        for attack, some in by_attack.items()
    )
    note = f"<p>{NO_FLAGS}.</p>" if any(line.verdict == "weights" for line in lines) else ""
    return _framed(head, bodies, "sticky") + left_out + note


def _row(line: Comparison, private: bool, spread: bool) -> str:
    unfinished = f" (+{line.unfinished} unfinished)" if line.unfinished else ""
    # A rule without flags detects a client by giving it next to no weight.
    mark = "*" if line.verdict == "weights" else ""
    return (
        f'<tr><td class="word">{html.escape(line.method)}</td>'
        + "".join(map(_number, (line.auroc, line.auroc_sd) if spread else (line.auroc,)))
        + _difference(line.loss_of_auroc)
        + "".join(_percent(rate, mark) for rate in (line.tpr, line.fpr))
        + f"<td>{line.seeds}{unfinished}</td>"
        + (_number(line.epsilon) if private else "")
        + "</tr>"
    )


def _heading(name: str, word: bool, hint: str = "") -> str:
    title = f' title="{html.escape(hint)}"' if hint else ""
    return (
        f'<th{" class=word" if word else ""}{title}><button type="button">{html.escape(name)}</button></th>'
    )


def _framed(head: str, bodies: str, kind: str) -> str:
    content = f'<table class="{kind}"><thead><tr>{head}</tr></thead>{bodies}</table>'
    return f'<div class="scroll" tabindex="0">{content}</div>'


def _text(cell: str | float | int | None) -> str:
    return "" if cell is None else fixed(cell) if isinstance(cell, float) else str(cell)


def _number(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{fixed(value)}</td>'


def _difference(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{difference(value)}</td>'


def _percent(value: float | None, mark: str) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{100 * value:.1f} %{mark}</td>'
