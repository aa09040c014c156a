"""A check of a table in words: for the terminal, and in short for the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from wardround.datasets.table_columns import ColumnSummary
from wardround.datasets.table_findings import TableCheck

__all__ = ["class_words", "column_words", "gap_words", "in_full", "in_short"]

MOST_HOSPITALS = 12
MOST_SAID = 5
"""Findings at the start of a run; `data check` has the others."""


def in_full(check: TableCheck) -> str:
    """All that the check has to say, as plain text."""
    return "\n".join([*_head(check), *_columns(check), "", *_findings(check)])


def in_short(check: TableCheck) -> list[str]:
    """The lines for the start of a run: the table in one, then what is wrong with it."""
    parts = [f"{check.rows:,} rows"]
    if check.hospitals:
        parts.append(f"{len(check.hospitals)} hospitals")
    if check.class_names:
        parts.append(f"{_answer(check)}: {class_words(check)}")
    shown = ", ".join(sorted({file.words for file in check.files}))
    lines = [f"{_names(check)}: {'; '.join(parts)} ({shown})"]
    important = [f"{level}: {text}" for level in ("error", "warning") for text in check.of(level)]
    lines += important[:MOST_SAID]
    if len(important) > MOST_SAID:
        lines.append(f"… and {len(important) - MOST_SAID} more: see `wardround data check`")
    return lines


def class_words(check: TableCheck) -> str:
    """Classes and their rows; of two, which one is predicted.

    For example "0 (850 rows), 1 (150 rows, 15 %, predicted)".
    """
    total = max(1, sum(check.classes))
    words = [
        f"{name} ({count:,} {'row' if count == 1 else 'rows'}, {100 * count / total:.0f} %)"
        for name, count in zip(check.class_names, check.classes, strict=True)
    ]
    if len(words) == 2:
        words[1] = words[1].removesuffix(")") + (", predicted)" if check.time is None else ", the event)")
    return ", ".join(words)


def _answer(check: TableCheck) -> str:
    return (
        f"label {check.label}" if check.time is None else f"survival: time {check.time}, event {check.label}"
    )


def _names(check: TableCheck) -> str:
    return ", ".join(Path(file.path).name for file in check.files)


def _head(check: TableCheck) -> Iterator[str]:
    for file in check.files:
        yield f"{file.path}: {file.rows:,} rows; {file.words}"
    if check.class_names:
        yield f"{_answer(check)}: {class_words(check)}"
    if check.splits:
        sizes = ", ".join(f"{sum(counts):,} {part}" for part, counts in check.splits.items())
        yield f"split with seed {check.seed}: {sizes} rows"
    if check.hospitals:
        shown = [f"{hospital.name} {hospital.rows:,}" for hospital in check.hospitals[:MOST_HOSPITALS]]
        more = (
            f", … ({len(check.hospitals) - MOST_HOSPITALS} more)"
            if len(check.hospitals) > MOST_HOSPITALS
            else ""
        )
        yield f"{len(check.hospitals)} hospitals: {', '.join(shown)}{more}"


def _columns(check: TableCheck) -> Iterator[str]:
    yield f"{len(check.columns)} columns:"
    rows = [
        (column.name, column.role, column_words(column), gap_words(column, check.rows))
        for column in check.columns
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield f"  {'  '.join([*cells, row[3]])}".rstrip()


def column_words(column: ColumnSummary) -> str:
    """What a column holds: its range, or its most frequent words."""
    if column.kind == "empty":
        return "empty"
    if column.lowest is not None and column.median is not None and column.highest is not None:
        values = [column.lowest, column.median, column.highest]
        least, middle, most = (_day(v) if column.kind == "date" else f"{v:.4g}" for v in values)
        return f"{column.kind}: {least} to {most}, median {middle}"
    words = ", ".join(f"{_cut(word)} ({count})" for word, count in column.levels[:3])
    more = f", … ({column.distinct - 3} more)" if column.distinct > 3 else ""
    return f"{column.kind}: {words}{more}"


def gap_words(column: ColumnSummary, rows: int) -> str:
    """How many cells are empty; nothing where none is."""
    return f"{column.gaps:,} gaps ({100 * column.gaps / rows:.1f} %)" if column.gaps else ""


def _day(days: float) -> str:
    return (date(1970, 1, 1) + timedelta(days=int(days // 1))).isoformat()


def _cut(word: str, longest: int = 24) -> str:
    return word if len(word) <= longest else word[: longest - 1] + "…"


def _findings(check: TableCheck) -> Iterator[str]:
    if not check.findings:
        yield "nothing stands out"
        return
    counts = [
        f"{len(texts)} {level}s" for level in ("error", "warning", "note") if (texts := check.of(level))
    ]
    yield ", ".join(count.removesuffix("s") if count.startswith("1 ") else count for count in counts)
    for finding in check.findings:
        yield f"  {finding.level + ':':<8} {finding.text}"
