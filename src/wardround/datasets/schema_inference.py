"""A first schema out of tables, for people to read and edit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wardround.datasets.csv_files import MISSING, read_table
from wardround.datasets.dates import AmbiguousDates, days_of
from wardround.datasets.label_words import choose_positive
from wardround.datasets.schema import MOST_LEVELS, Column, Schema, canonical
from wardround.errors import ConfigError, DataError, did_you_mean

__all__ = ["Inferred", "infer_schema"]

MOST_CODES = 10
"""Whole numbers with at most so many different values may be codes of a category."""
FEWEST_CODES = 3
"""Two values, 0 and 1, are as good a number."""
MOST_WORDS = 50
"""More different words than this are names, notes or identifiers."""
RANGE_MARGIN = 0.5
"""The range that is written is wider than the values by this share of their span on either side."""


@dataclass(frozen=True)
class Inferred:
    """A schema, and what a person should look at."""

    schema: Schema
    notes: tuple[str, ...]


def infer_schema(
    files: Sequence[Path],
    label: str,
    *,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    patient: str | None = None,
    client: str | None = None,
    groups: Sequence[str] = (),
    positive: str | None = None,
    time: str | None = None,
) -> Inferred:
    """Types, levels, ranges and classes as they occur in the files.

    A column that one of several files lacks is not required. Words are categories, and so are whole numbers with 3 to
    10 different values, which may be codes. Columns with more than 50 different words are left out, with a note.
    `time`: the column of times of a survival task, whose events `label` has.
    """
    tables = {path: read_table(path, [label]) for path in files}
    if not tables:
        raise ConfigError("schema infer: give at least one file")
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    for name in (*categorical, *drop, *groups, *filter(None, (patient, client, time))):
        if name not in names:
            raise ConfigError(f"{files[0]} has no column '{name}'; {did_you_mean(name, names)}")
    notes: list[str] = []
    columns = []
    for name in names:
        if name in (label, patient, client, time, *drop):
            continue
        column = _infer_column(name, tables, name in categorical, notes)
        if column is not None:
            columns.append(column)
    if not columns:
        raise DataError(f"{files[0]}: no column is left to be a feature beside {label}")
    classes = _classes(tables, label)
    chosen = positive
    if positive is None and len(classes) == 2:
        chosen = choose_positive(classes).name
    if len(classes) == 2:
        what = "the class to predict" if time is None else "the event"
        notes.append(f"label '{label}' is {' or '.join(classes)}: {what} is {chosen!r}")
    values = {
        "columns": [column.non_default() for column in columns],
        "label": {"name": label, "classes": classes, "positive": chosen, "time": time},
        "patient": patient,
        "client": client,
        "groups": tuple(groups),
    }
    return Inferred(Schema.from_dict(values, "schema infer"), tuple(notes))


def _infer_column(
    name: str, tables: Mapping[Path, Mapping[str, list[str]]], is_category: bool, notes: list[str]
) -> Column | None:
    required = all(name in table for table in tables.values())
    cells = [cell.strip() for table in tables.values() for cell in table.get(name, ())]
    known = [cell for cell in cells if cell.lower() not in MISSING]
    gaps = not required or len(known) < len(cells)
    if not known:
        notes.append(f"column '{name}' has no value in any file: left out")
        return None
    levels = sorted({canonical(cell) for cell in known}, key=_order)
    numbers = [_number(cell) for cell in known]
    if not is_category and None in numbers and (days := _days(known)) is not None:
        notes.append(f"column '{name}' holds dates: they are numbers, of days since 1970")
        return Column(name=name, range=_range(days), required=required)
    if not is_category and None not in numbers:
        values = [value for value in numbers if value is not None]
        whole = all(value == int(value) for value in values)
        if not (whole and FEWEST_CODES <= len(levels) <= MOST_CODES):
            return Column(name=name, range=_range(values), required=required)
        notes.append(
            f"column '{name}' is taken for codes ({', '.join(levels)}); if it is a number, write type: number"
        )
    if len(levels) > (MOST_LEVELS if is_category else MOST_WORDS):
        notes.append(f"column '{name}' has {len(levels)} different words: left out")
        return None
    return Column(name=name, type="category", levels=tuple(levels), required=required, missing=gaps)


def _days(cells: Sequence[str]) -> list[float] | None:
    """A column of dates as days since 1970; None for any other, and where day and month cannot be told apart."""
    try:
        return days_of(cells)
    except AmbiguousDates:
        return None


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _order(level: str) -> tuple[float, str]:
    """Numbers by size, before words."""
    number = _number(level)
    return (math.inf if number is None else number, level)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """A range with room for other hospitals' values, in round numbers.

    >>> _range([28.0, 77.0]), _range([0.0, 1.0])
    ((3.5, 110.0), (0.0, 1.0))
    """
    least, largest = min(values), max(values)
    if set(values) <= {0.0, 1.0}:
        return 0.0, 1.0
    margin = RANGE_MARGIN * (largest - least)
    low, high = _rounded(least - margin, math.floor), _rounded(largest + margin, math.ceil)
    return (max(low, 0.0) if least >= 0 else low), high


def _rounded(value: float, towards: Callable[[float], int]) -> float:
    """Two digits, rounded away from the values."""
    if value == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{towards(value / step) * step:.2g}")


def _classes(tables: Mapping[Path, Mapping[str, list[str]]], label: str) -> list[str]:
    words: set[str] = set()
    for path, table in tables.items():
        for row, cell in enumerate(table[label]):
            if cell.strip().lower() in MISSING:
                raise DataError(f"{path}: column '{label}' is empty in row {row + 1}")
            words.add(canonical(cell))
    if len(words) < 2:
        raise DataError(
            f"{', '.join(map(str, tables))}: label '{label}' is {next(iter(words))!r} in every row; two classes are "
            "needed: give the files of more hospitals, or write the classes into the schema"
        )
    if len(words) > MOST_WORDS:
        raise DataError(
            f"label '{label}' has {len(words)} different values: a number to predict is not a class"
        )
    return sorted(words, key=_order)
