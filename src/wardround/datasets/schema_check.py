"""Does a table fit a schema? What does not fit is named: column, value, row, and what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wardround.datasets.csv_files import MISSING
from wardround.datasets.dates import AmbiguousDates, days_of
from wardround.datasets.schema import Column, Label, Schema, canonical
from wardround.errors import DataError, did_you_mean
from wardround.survival import encode

__all__ = ["Conformed", "Problem", "SchemaMismatch", "conform"]

MOST_SHOWN, LONGEST_VALUE = 5, 40
Cells = Sequence[str] | np.ndarray


@dataclass(frozen=True)
class Problem:
    """One thing in a table that a schema does not allow."""

    column: str
    expected: str
    value: str | None = None
    """The first cell that does not fit; None where there is no cell (a column that is not there)."""
    row: int | None = None
    """Its row, from 1."""
    rows: int = 1
    """How many rows have the same problem."""

    def __str__(self) -> str:
        return self.describe()

    def describe(self, show_value: bool = True, show_row: bool = True) -> str:
        """One line.

        >>> str(Problem("thal", "one of 3, 6, 7", "9", 12, 4))
        "column 'thal' holds '9' (row 12 and 3 more), expected one of 3, 6, 7"
        """
        if self.value is None:
            return f"column '{self.column}' is not there, expected {self.expected}"
        what = f"holds {self.value!r}" if show_value else "holds what does not fit"
        if not self.value:
            what = "is empty"
        more = f" and {self.rows - 1} more" if self.rows > 1 else ""
        row = f" (row {self.row}{more})" if show_row else ""
        return f"column '{self.column}' {what}{row}, expected {self.expected}"


class SchemaMismatch(DataError):
    """A table that does not fit a schema."""

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.where, self.problems = where, tuple(problems)
        super().__init__(f"{where}: {self.describe()}")

    def describe(self, show_value: bool = True, show_row: bool = True) -> str:
        """The first problems, and how many more there are."""
        shown = [problem.describe(show_value, show_row) for problem in self.problems[:MOST_SHOWN]]
        more = len(self.problems) - len(shown)
        return "; ".join([*shown, f"and {more} more problems"] if more else shown)


@dataclass(frozen=True, eq=False)
class Conformed:
    """The columns of a schema, typed and in its order."""

    numeric: dict[str, np.ndarray]
    """Column → float64, NaN where missing."""
    categorical: dict[str, np.ndarray]
    """Column → levels as the schema spells them, "" where missing."""
    targets: np.ndarray | None
    """Class numbers, or signed times of a survival task; None where the table has no label and needs none."""


def conform(columns: Mapping[str, Cells], schema: Schema, where: str, with_label: bool = True) -> Conformed:
    """A table's columns as the schema has them.

    Args:
        columns: Name → cells: words as in a file, or numbers (NaN where missing). All of one length.
        schema: What is expected.
        where: Opens the error message: the file's name.
        with_label: Is the label needed? A table to predict for has none.

    Raises:
        SchemaMismatch: With everything that does not fit.
    """
    problems: list[Problem] = []
    rows = len(next(iter(columns.values()), ()))
    numeric: dict[str, np.ndarray] = {}
    categorical: dict[str, np.ndarray] = {}
    for column in schema.columns:
        cells = columns.get(column.name)
        if cells is None and column.required:
            hint = did_you_mean(column.name, columns)
            problems.append(Problem(column.name, f"{_expected(column)}; {hint}"))
        words = [""] * rows if cells is None else _words(cells, column.missing_values)
        if column.type == "number":
            numeric[column.name] = _numbers(words, column, problems, cells is not None)
        else:
            categorical[column.name] = _levels(words, column, problems, cells is not None)
    targets = None
    if with_label:
        targets = _targets(columns.get(schema.label.name), schema.label, problems)
        if schema.label.time is not None:
            times = _times(columns.get(schema.label.time), schema.label.time, problems)
            targets = None if targets is None or times is None else encode(times, targets == 1)
    if problems:
        raise SchemaMismatch(where, problems)
    return Conformed(numeric, categorical, targets)


def _words(cells: Cells, missing_values: Sequence[str] = ()) -> list[str]:
    """Cells as levels are compared, "" where there is no value."""
    gaps = {canonical(value) for value in missing_values}
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiu":
        cells = ["" if np.isnan(value) else repr(float(value)) for value in cells.tolist()]
    words = []
    for cell in cells:
        text = str(cell).strip()
        text = "" if text.lower() in MISSING else text
        words.append("" if text and canonical(text) in gaps else text)
    return words


class _Collector:
    """Counts the cells of one column that do not fit; keeps the first."""

    def __init__(self, column: str, expected: str) -> None:
        self.column, self.expected = column, expected
        self.first: tuple[str, int] | None = None
        self.rows = 0

    def add(self, value: str, row: int) -> None:
        self.rows += 1
        if self.first is None:
            self.first = (value[:LONGEST_VALUE], row + 1)

    def report(self, problems: list[Problem]) -> None:
        if self.first is not None:
            problems.append(Problem(self.column, self.expected, *self.first, self.rows))


def _numbers(words: list[str], column: Column, problems: list[Problem], given: bool) -> np.ndarray:
    least, largest = column.range or (None, None)
    values = np.full(len(words), np.nan)
    words = _dates_as_days(words)
    wrong = _Collector(column.name, _expected(column))
    for row, word in enumerate(words):
        if not word:
            _check_gap(column, wrong, row, given)
            continue
        try:
            value = float(word)
        except ValueError:
            wrong.add(word, row)
            continue
        too_small, too_large = least is not None and value < least, largest is not None and value > largest
        if not np.isfinite(value) or too_small or too_large:
            wrong.add(word, row)
        else:
            values[row] = value
    wrong.report(problems)
    return values


def _dates_as_days(words: list[str]) -> list[str]:
    """A column of dates as days since 1970; any other column as it is."""
    if all(_is_number(word) for word in words if word):
        return words
    try:
        days = days_of([word for word in words if word])
    except AmbiguousDates:
        return words
    if days is None:
        return words
    left = iter(days)
    return [repr(next(left)) if word else "" for word in words]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _levels(words: list[str], column: Column, problems: list[Problem], given: bool) -> np.ndarray:
    spelling = {canonical(level): level for level in column.levels}
    wrong = _Collector(column.name, _expected(column))
    levels = []
    for row, word in enumerate(words):
        level = spelling.get(canonical(word), "")
        if not word:
            _check_gap(column, wrong, row, given)
        elif not level and column.other:
            level = canonical(word)
        elif not level:
            wrong.add(word, row)
        levels.append(level)
    wrong.report(problems)
    return np.array(levels, dtype=object)


def _check_gap(column: Column, wrong: _Collector, row: int, given: bool) -> None:
    if given and not column.missing and not column.other:
        wrong.add("", row)


def _targets(cells: Cells | None, label: Label, problems: list[Problem]) -> np.ndarray | None:
    expected = "the label, one of " + ", ".join(
        f"{name} ({', '.join(label.cells[name])})" if name in label.cells else name for name in label.classes
    )
    if cells is None:
        problems.append(Problem(label.name, expected))
        return None
    index = label.index()
    wrong = _Collector(label.name, expected)
    numbers = []
    for row, word in enumerate(_words(cells)):
        number = index.get(canonical(word), -1) if word else -1
        if number < 0:
            wrong.add(word, row)
        numbers.append(number)
    wrong.report(problems)
    return np.array(numbers, dtype=np.int64)


def _times(cells: Cells | None, name: str, problems: list[Problem]) -> np.ndarray | None:
    expected = "the time to the event or to censoring: a number that is not negative, never empty"
    if cells is None:
        problems.append(Problem(name, expected))
        return None
    wrong = _Collector(name, expected)
    times = []
    for row, word in enumerate(_words(cells)):
        try:
            time = float(word)
        except ValueError:
            time = np.nan
        if not 0 <= time < np.inf:
            wrong.add(word, row)
        times.append(time)
    wrong.report(problems)
    return np.array(times)


def _expected(column: Column) -> str:
    """What a cell of a column may be, in words."""
    gaps = "" if column.missing else ", never empty"
    if column.type == "category":
        levels = f"one of {', '.join(column.levels)}" if column.levels else "a word"
        return f"{levels}{' or another word' if column.other and column.levels else ''}{gaps}"
    unit = f" in {column.unit}" if column.unit else ""
    bounds = ""
    if column.range is not None:
        least, largest = column.range
        low = None if least is None else f"{least:g}"
        high = None if largest is None else f"{largest:g}"
        bounds = (
            f" from {low} to {high}" if low and high else f" of at least {low}" if low else f" up to {high}"
        )
        bounds = "" if not low and not high else bounds
    return f"a number{bounds}{unit}{gaps}"
