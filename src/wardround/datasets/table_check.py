"""What a table holds and what is wrong with it, before anybody trains on it: `wardround data check`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from wardround.datasets.base import split_units
from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.csv_files import MISSING, TextTable, read_text_table
from wardround.datasets.csv_table import CsvTable
from wardround.datasets.label_words import choose_positive
from wardround.datasets.schema import canonical
from wardround.datasets.schema_check import SchemaMismatch, conform
from wardround.datasets.table_columns import ColumnSummary, Role, describe_column, gives_away, number_or_none
from wardround.datasets.table_findings import FileSummary, Finding, HospitalSummary, Level, TableCheck
from wardround.datasets.table_roles import TableRoles
from wardround.errors import DataError, WardroundError, WardroundWarning, did_you_mean

__all__ = ["check_table"]

SMALLEST_HOSPITAL = 10
"""Training rows that the partition `natural` asks of a hospital."""
MANY_GAPS = 0.5
RARE = 0.01
MOST_LEVELS = 50
"""A column with more different words is hardly a category."""


def check_table(source: CsvTable, seed: int = 0, min_size: int = SMALLEST_HOSPITAL) -> TableCheck:
    """Read the files of a `csv` dataset and look for what would go wrong with them.

    `min_size`: training rows that the run's partition asks of a hospital. What keeps a file from being read at all is
    a `DataError`; everything else is a finding.
    """
    p = source.params
    dialect = Dialect(p.separator, p.decimal, p.encoding)
    paths = p.files or {"": Path(str(p.file))}
    tables = {name: read_text_table(path, dialect=dialect, missing=p.missing) for name, path in paths.items()}
    files = tuple(_file(path, tables[name]) for name, path in paths.items())
    return _Checker(source, tables, files, seed, min_size).check()


def _file(path: Path, table: TextTable) -> FileSummary:
    rows = len(next(iter(table.columns.values()), []))
    found = table.dialect
    return FileSummary(str(path), rows, found.separator or ",", found.decimal, found.encoding or "")


class _Checker:
    """One check at work: the table as columns of cells, and the findings so far."""

    def __init__(
        self,
        source: CsvTable,
        tables: Mapping[str, TextTable],
        files: tuple[FileSummary, ...],
        seed: int,
        min_size: int,
    ) -> None:
        self.source, self.params, self.tables, self.files, self.seed = (
            source,
            source.params,
            tables,
            files,
            seed,
        )
        self.lengths = {name: file.rows for name, file in zip(tables, files, strict=True)}
        order = dict.fromkeys(column for table in tables.values() for column in table.columns)
        self.cells = {
            column: [
                cell
                for name, table in tables.items()
                for cell in table.columns.get(column, [""] * self.lengths[name])
            ]
            for column in order
        }
        self.rows, self.min_size = sum(self.lengths.values()), min_size
        self.roles = TableRoles.of(source, list(order))
        self.findings: list[Finding] = []

    def check(self) -> TableCheck:
        """All checks, in the order in which a person would make them."""
        self._check_files()
        self._check_roles()
        self._check_schema()
        targets, names = self._classes()
        positive = targets == 1 if targets is not None and len(names) == 2 else None
        columns = tuple(
            describe_column(name, self._role(name), cells, positive) for name, cells in self.cells.items()
        )
        for column in columns:
            self._check_column(column, targets)
        if not any(column.role in ("feature", "category") for column in columns):
            self._find("error", "no column is left to be a feature")
        duplicates = self._check_duplicates()
        groups = self._groups()
        hospitals: tuple[HospitalSummary, ...] = ()
        splits: dict[str, tuple[int, ...]] = {}
        if targets is not None:
            parts = self._split(groups)
            splits = {
                name: _counts(targets[rows], len(names))
                for name, rows in zip(("train", "validation", "test"), parts, strict=True)
            }
            self._check_splits(splits, names)
            if groups is not None:
                hospitals = _hospitals(groups, targets, parts, len(names))
                self._check_hospitals(hospitals, names)
        if self.roles.time is not None and len(names) > 2:
            self._find(
                "error",
                f"event '{self.roles.label}' has {len(names)} values, expected two: censored and event",
            )
        return TableCheck(
            self.files,
            self.rows,
            columns,
            self.roles.label,
            names,
            () if targets is None else _counts(targets, len(names)),
            hospitals,
            splits,
            self.seed,
            duplicates,
            tuple(
                sorted(self.findings, key=lambda finding: ("error", "warning", "note").index(finding.level))
            ),
            self.roles.time,
        )

    def _find(self, level: Level, text: str) -> None:
        self.findings.append(Finding(level, text))

    def _check_files(self) -> None:
        for file in self.files:
            name = Path(file.path).name
            if file.encoding == "Latin-1" and self.params.encoding is None:
                self._find(
                    "note",
                    f"{name} is not UTF-8, so it is read as Latin-1; if letters look wrong, give its `encoding`",
                )
        if len({(file.separator, file.decimal or ".", file.encoding) for file in self.files}) > 1:
            self._find("note", "the files are written differently: each is read in its own way")
        for column in self.cells:
            without = [name for name, table in self.tables.items() if column not in table.columns]
            if without:
                self._find("warning", f"column '{column}' is missing in {', '.join(without)}")

    def _check_roles(self) -> None:
        roles = self.roles
        for role in (roles.label, roles.time, roles.client, roles.patient, *roles.categorical, *roles.drop):
            if role is not None and role not in self.cells:
                raise DataError(f"{self._where} has no column '{role}'; {did_you_mean(role, self.cells)}")
        if roles.label is None:
            two = [name for name in self.cells if len(self._words(name)) == 2]
            known = f"; columns with two values: {', '.join(two)}" if two else ""
            self._find("note", f"no label is given, so classes are not checked{known}")

    def _check_schema(self) -> None:
        """What does not fit the schema, file by file, as a hospital would be told."""
        if self.roles.schema is None:
            return
        for file, table in zip(self.files, self.tables.values(), strict=True):
            try:
                conform(table.columns, self.roles.schema, Path(file.path).name)
            except SchemaMismatch as mismatch:
                for problem in mismatch.problems:
                    self._find("error", f"{Path(file.path).name}: {problem}")

    @property
    def _where(self) -> str:
        return ", ".join(Path(file.path).name for file in self.files)

    def _words(self, column: str) -> set[str]:
        return {cell.strip() for cell in self.cells[column]} - {
            cell.strip() for cell in self.cells[column] if cell.strip().lower() in MISSING
        }

    def _role(self, column: str) -> Role:
        roles = self.roles
        if column in roles.categorical:
            return "category"
        if column in roles.drop:
            return "dropped"
        named: dict[str | None, Role] = {
            roles.label: "label",
            roles.time: "time",
            roles.client: "client",
            roles.patient: "patient",
        }
        return named.get(column, "feature")

    def _classes(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        label, schema = self.roles.label, self.roles.schema
        if label is None:
            return None, ()
        cells = self.cells[label]
        empty = [row for row, cell in enumerate(cells) if cell.strip().lower() in MISSING]
        if empty:
            self._find(
                "error",
                f"label '{label}' is empty in {len(empty)} rows, the first is row {empty[0] + 1}: remove these rows",
            )
            return None, ()
        if schema is not None:
            names = schema.label.classes
            places = {name: place for place, name in enumerate(names)}
            if any(canonical(cell) not in places for cell in cells):
                return None, ()  # the schema's own check has said so
            targets = np.array([places[canonical(cell)] for cell in cells])
        else:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", WardroundWarning)  # what it guesses is a finding below
                    targets, names = self.source.labels(cells)
            except WardroundError as error:
                self._find("error", str(error))
                return None, ()
        if len(names) < 2:
            self._find("error", f"label '{label}' is {names[0]!r} in every row; two classes are needed")
        guessed = len(names) == 2 and schema is None and self.params.positive is None
        if guessed and not choose_positive(names).is_known:
            self._find(
                "warning",
                f"'{names[1]}' is taken for the class to predict: give `positive` to say which one it is",
            )
        counts = _counts(targets, len(names))
        for name, count in zip(names, counts, strict=True):
            if count < RARE * self.rows:
                self._find("warning", f"class '{name}' is rare: {count} of {self.rows} rows")
        return targets, names

    def _check_column(self, column: ColumnSummary, targets: np.ndarray | None) -> None:
        name, role = column.name, column.role
        if role in ("label", "dropped"):
            return
        if role == "time":
            self._check_times(column)
            return
        if role in ("client", "patient"):
            if column.gaps:
                self._find("error", f"column '{name}' ({role}) is empty in {column.gaps} rows")
            return
        if column.kind == "empty":
            self._find("warning", f"column '{name}' is empty: name it under `drop`")
            return
        if column.gaps > MANY_GAPS * self.rows:
            self._find("warning", f"column '{name}' is empty in {_share(column.gaps, self.rows)} of the rows")
        if column.ambiguous:
            assert column.first_word is not None
            self._find(
                "error",
                f"column '{name}' holds dates like {column.first_word[0]}, in which day and month cannot be told apart",
            )
        elif column.kind == "date" and role == "feature":
            self._find("note", f"column '{name}' holds dates: they are read as days since 1970")
        if column.kind == "words" and role == "feature":
            # Without a label nobody has said yet what the columns are.
            self._find("note" if self.roles.label is None else "error", self._advice_on_words(column))
        if column.is_constant and not column.gaps:
            self._find("note", f"column '{name}' is the same in every row: it tells nothing")
        if column.looks_like_patients and column.kind == "number" and column.distinct < self.rows:
            self._find("warning", f"column '{name}' repeats: if it names the patient, give it as `patient`")
        if targets is not None and (how := gives_away(column, self.cells[name], targets)) is not None:
            self._find(
                "warning",
                f"column '{name}' gives the label away: {how}; drop it if it is not known before the outcome",
            )

    def _check_times(self, column: ColumnSummary) -> None:
        """The times of a survival task: numbers that are not negative, for every row."""
        values = [number_or_none(cell) for cell in self.cells[column.name]]
        wrong = [row for row, value in enumerate(values) if value is None or not 0 <= value < np.inf]
        if wrong and self.roles.schema is None:  # the schema's own check has said so
            cell = self.cells[column.name][wrong[0]]
            self._find(
                "error",
                f"time '{column.name}' is {cell!r} in row {wrong[0] + 1} ({len(wrong)} such rows): it must be a number "
                "that is not negative",
            )

    def _advice_on_words(self, column: ColumnSummary) -> str:
        assert column.first_word is not None
        word, row = column.first_word
        start = f"column '{column.name}' holds words ({word!r} in row {row + 1})"
        if column.looks_like_patients:
            return f"{start}: if it names the patient, give it as `patient`, else name it under `drop`"
        others = sum(_is_number(cell) for cell in self.cells[column.name])
        if others > self.rows / 2:
            return f"{start} among numbers: fix the cell, or give {word!r} as a word for a gap (`missing`)"
        if column.distinct == self.rows - column.gaps:
            return f"{start}, all different: an identifier or a note, to be named under `drop`"
        if column.distinct > MOST_LEVELS:
            return f"{start}, {column.distinct} different ones: name it under `drop`, or as `client` or `patient`"
        return f"{start}: name it under `categorical` ({column.distinct} levels), or under `drop`"

    def _check_duplicates(self) -> int:
        rows = Counter(zip(*self.cells.values(), strict=True))
        repeated = self.rows - len(rows)
        if repeated:
            self._find(
                "warning",
                f"{_rows(repeated)} an earlier one ({_share(repeated, self.rows)}): a model may be tested on rows "
                "that it was trained on",
            )
        if self.roles.label is not None and not repeated:
            others = [cells for name, cells in self.cells.items() if name != self.roles.label]
            alike = self.rows - len(set(zip(*others, strict=True))) if others else 0
            if alike:
                self._find("note", f"{_rows(alike)} an earlier one with another label")
        return repeated

    def _groups(self) -> np.ndarray | None:
        client = self.roles.client
        if self.params.files:
            return np.array([name for name, rows in self.lengths.items() for _ in range(rows)])
        return None if client is None else np.array([cell.strip() for cell in self.cells[client]])

    def _split(self, groups: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """The rows of training, validation and test, as the dataset with this seed has them."""
        patient = self.roles.patient
        units = np.array(self.cells[patient] if patient else range(self.rows))
        if not self.params.files:
            return split_units(units, self.seed)
        assert groups is not None
        parts: list[list[np.ndarray]] = [[], [], []]
        for name in self.lengths:
            own = np.flatnonzero(groups == name)
            for part, rows in zip(parts, split_units(units[own], self.seed), strict=True):
                part.append(own[rows])
        return tuple(np.concatenate(part) for part in parts)

    def _check_splits(self, splits: Mapping[str, tuple[int, ...]], names: Sequence[str]) -> None:
        for name, in_train, in_test in zip(names, splits["train"], splits["test"], strict=True):
            if not in_train:
                self._find(
                    "error", f"class '{name}' has no training row with seed {self.seed}: no run can start"
                )
            elif not in_test:
                self._find(
                    "warning",
                    f"class '{name}' has no test row with seed {self.seed}: its metrics cannot be computed; bring more "
                    "rows, or take another seed",
                )

    def _check_hospitals(self, hospitals: Sequence[HospitalSummary], names: Sequence[str]) -> None:
        for hospital in hospitals:
            if hospital.train < self.min_size:
                self._find(
                    "warning",
                    f"hospital '{hospital.name}' is small: {hospital.train} training rows, the partition asks for "
                    f"{self.min_size} (`min_size`)",
                )
            lacking = [name for name, count in zip(names, hospital.classes, strict=True) if not count]
            if lacking and not (self.roles.time is not None and lacking == [names[0]]):
                words = ", ".join(f"'{name}'" for name in lacking)
                measure = "AUROC" if self.roles.time is None else "C-index"
                self._find(
                    "note",
                    f"hospital '{hospital.name}' has no row of {words}: it has no {measure} of its own",
                )


def _counts(targets: np.ndarray, classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(targets, minlength=classes).tolist())


def _hospitals(
    groups: np.ndarray, targets: np.ndarray, parts: Sequence[np.ndarray], classes: int
) -> tuple[HospitalSummary, ...]:
    def each() -> Iterator[HospitalSummary]:
        for name in sorted(set(groups.tolist())):
            own = groups == name
            yield HospitalSummary(
                name,
                int(own.sum()),
                _counts(targets[own], classes),
                int(own[parts[0]].sum()),
                int(own[parts[2]].sum()),
            )

    return tuple(each())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _rows(count: int) -> str:
    return "1 row repeats" if count == 1 else f"{count:,} rows repeat"


def _share(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.1f} %" if share < 10 else f"{share:.0f} %"
