"""A user's own table, wherever it is read from: roles of the columns, labels, schema, and the dataset it makes.

A source says where its tables are and reads them as columns of words; everything after that is the same for a CSV file
and for a database.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from wardround.datasets.base import Dataset, DatasetSource, Task
from wardround.datasets.csv_files import MISSING, numbers
from wardround.datasets.label_words import choose_positive
from wardround.datasets.patient_groups import groups_of_column
from wardround.datasets.schema import Label, Schema, SchemaOption, canonical
from wardround.datasets.schema_check import conform
from wardround.datasets.table import Table
from wardround.datasets.tabular import tabular_dataset
from wardround.datasets.targets import classes_of
from wardround.errors import ConfigError, DataError, WardroundWarning
from wardround.survival import encode

__all__ = ["TableParams", "TableSource"]

MOST_CLASSES = 50
Signature = tuple[tuple[str, float, int], ...]


class TableParams(SchemaOption):
    """What a user says of the columns of a table."""

    new: ClassVar[frozenset[str]] = frozenset({"task", "time", "event"})

    label: str | None = None
    """Required where there is no schema."""
    task: Literal["classification", "survival"] | None = None
    """What is predicted; default: survival where there is a `time`, else the classes of the label."""
    time: str | None = None
    """Of a survival task: the column with the time to the event, or until a patient was lost from sight."""
    event: str | None = None
    """Of a survival task: the column that says whether the event happened (0 or 1, or two words); it is the label."""
    client: str | None = None
    patient: str | None = None
    """Rows with the same value are one patient's; default: every row is a patient of its own."""
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    positive: str | None = None
    """Of two labels the one to predict; default: 1 of 0 and 1, and the one that says yes, in many languages
    (ja of nein and ja, died of alive and died). Where no word tells, the later in order, with a warning."""
    groups: tuple[str, ...] | dict[str, tuple[float, ...] | None] = ()
    """Columns of patient groups, for figures per group: `[sex, age]`, or with the numbers at which new groups
    begin: `{sex: null, age: [40, 60]}`. They may be features or not."""

    @model_validator(mode="before")
    @classmethod
    def _event_is_the_label(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("event") is not None:
            if values.get("label") not in (None, values["event"]):
                raise ValueError("give label (classes) or time and event (survival), not both")
            return {**values, "label": values["event"]}
        return values

    @model_validator(mode="after")
    def _time_and_event(self) -> TableParams:
        if (self.time is None) != (self.event is None):
            given, other = ("time", "event") if self.event is None else ("event", "time")
            raise ValueError(f"a survival task has time and event: {given} is given, {other} is not")
        if self.task == "survival" and self.time is None and self.schema is None:
            raise ValueError(
                "task survival needs the columns time and event (or a schema whose label has a time)"
            )
        if self.task == "classification" and self.time is not None:
            raise ValueError("time and event are of task survival; a classification has a label")
        return self

    @model_validator(mode="after")
    def _schema_or_roles(self) -> TableParams:
        said = [key for key in ("categorical", "drop", "positive") if getattr(self, key)]
        if self.schema is not None and said:
            raise ValueError(f"the schema says what the columns are: leave {', '.join(said)} out")
        return self


class TableSource(DatasetSource):
    """A table with one row per sample and one column with the label, read as columns of words."""

    task = Task.BINARY

    class Params(TableParams):
        pass

    params: TableParams

    @property
    @abstractmethod
    def places(self) -> dict[str, str]:
        """Hospital → where its table is, in words for messages; one place under "" where there is one table."""

    @property
    @abstractmethod
    def is_per_hospital(self) -> bool:
        """Is there one table per hospital, so that each is split by itself?"""

    @abstractmethod
    def read_columns(self, hospital: str, required: Sequence[str] = ()) -> dict[str, list[str]]:
        """Column name → cells of one hospital's table; `required`: columns that it must have."""

    @property
    def label(self) -> str | None:
        """The column to predict; None where only a schema says it."""
        return self.params.label

    @property
    def categorical(self) -> tuple[str, ...]:
        """The columns of words."""
        return self.params.categorical

    def signature(self) -> Signature:
        """What changes when the tables change, as far as that can be seen without reading them."""
        return ()

    @property
    def needs_schema(self) -> bool:
        """Is nothing said of the columns, so that only a schema from elsewhere can say it?"""
        return self.label is None and self.params.schema is None

    def count_rows(self) -> int:
        """How many rows the tables have; raises `DataError` for one that cannot be read."""
        return sum(len(next(iter(self.read_columns(hospital).values()))) for hospital in self.places)

    def load(self, seed: int) -> Dataset:
        p = self.params
        if (schema := p.given_schema()) is not None:
            return self._load(schema, seed, check=True)
        table, names = self.read_table()
        if len(names) < 2:
            raise DataError(
                f"{self._where}: label '{self.label}' is {names[0]!r} in every row; two classes are needed"
            )
        label = Label(name=str(self.label), classes=names, time=p.time)
        return tabular_dataset(
            self.name, Task.of_label(label), names, table, seed, label=label.name, time=label.time
        )

    def load_as(self, schema: Schema, seed: int) -> Dataset:
        return self._load(schema, seed, check=False)

    def _load(self, schema: Schema, seed: int, check: bool) -> Dataset:
        """The table as a schema has it; a hospital may lack a class, a simulation as a whole may not."""
        p = self.params
        if self.label not in (None, schema.label.name):
            raise ConfigError(
                f"dataset '{self.name}': label is '{self.label}', but the schema's is '{schema.label.name}'"
            )
        if p.time not in (None, schema.label.time):
            raise ConfigError(
                f"dataset '{self.name}': time is '{p.time}', but the schema's label has {schema.label.time or 'none'}"
            )
        survival = schema.label.time is not None
        if p.task is not None and (p.task == "survival") != survival:
            has = "has a time" if survival else "has no time"
            raise ConfigError(f"dataset '{self.name}': task is '{p.task}', but the schema's label {has}")
        names = schema.label.classes
        tables = []
        for hospital, where in self.places.items():
            columns = self.read_columns(hospital)
            patient, client = p.patient or schema.patient, p.client or schema.client
            conformed = conform(columns, schema, where)
            assert conformed.targets is not None
            count = len(conformed.targets)
            groups = [hospital] * count if self.is_per_hospital else None
            if client is not None and client in columns and groups is None:
                groups = self._filled(columns, client, where)
            units = self._filled(columns, patient, where) if patient in columns else list(range(count))
            table = Table(conformed.numeric, conformed.categorical, conformed.targets, units, groups)
            tables.append(replace(table, patient_groups=self._patient_groups(columns, count, schema.groups)))
        task, joined = Task.of_label(schema.label), self._joined(tables, names)
        return tabular_dataset(self.name, task, names, joined, seed, schema, check=check)

    def _joined(self, tables: list[Table], names: tuple[str, ...]) -> Table:
        """The tables of several hospitals as one."""
        targets = np.concatenate([table.targets for table in tables])
        units: list[object] = [unit for table in tables for unit in table.units]
        groups = None if tables[0].groups is None else [g for table in tables for g in table.groups or ()]
        return Table(
            {name: np.concatenate([table.numeric[name] for table in tables]) for name in tables[0].numeric},
            {
                name: np.concatenate([table.categorical[name] for table in tables])
                for name in tables[0].categorical
            },
            targets,
            units,
            groups,
            {"rows": len(targets), "labels": _label_counts(targets, names)},
            split_apart=self.is_per_hospital,
            patient_groups={
                name: [group for table in tables for group in table.patient_groups[name]]
                for name in tables[0].patient_groups
            },
        )

    @property
    def _where(self) -> str:
        return ", ".join(self.places.values())

    def read_table(self) -> tuple[Table, tuple[str, ...]]:
        """The table without a schema, by what the options say, and the classes that occur in it."""
        p = self.params
        if self.label is None:
            raise ConfigError(f"dataset '{self.name}': 'label' (or time and event, or a schema) is required")
        answer = [self.label, *filter(None, (p.time,))]
        named = [*answer, *filter(None, (p.client, p.patient)), *self.categorical, *p.drop]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ConfigError(f"dataset '{self.name}': column '{twice}' is given two roles")
        several = self.is_per_hospital
        texts = {name: self.read_columns(name, answer if several else named) for name in self.places}
        order = dict.fromkeys(column for text in texts.values() for column in text)
        lengths = {name: len(text[self.label]) for name, text in texts.items()}
        # A column that one hospital's file lacks is empty there.
        columns = {
            column: [cell for name, text in texts.items() for cell in text.get(column, [""] * lengths[name])]
            for column in order
        }
        targets, names = self.labels(columns[self.label])
        if p.time is not None:
            targets = self._with_times(targets, names, columns[p.time])
        features = [name for name in columns if name not in named]
        categorical = [name for name in self.categorical if name in columns]
        if not features and not categorical:
            raise DataError(f"{self._where}: no column is left to be a feature beside {', '.join(named)}")
        advice = "; name the column under `categorical` or `drop`, or fix the cell"
        where = next(iter(self.places.values()))
        count = len(targets)
        units: list[object] = [row for length in lengths.values() for row in range(length)]
        if p.patient:
            units = list(self._filled(columns, p.patient, where))
        groups = self._filled(columns, p.client, where) if p.client else None
        if several:
            groups = [name for name in texts for _ in range(lengths[name])]
        table = Table(
            numeric={name: numbers(columns[name], name, where, advice) for name in features},
            categorical={name: _words(columns[name]) for name in categorical},
            targets=targets,
            units=units,
            groups=groups,
            facts={"rows": count, "labels": _label_counts(targets, names)},
            split_apart=several,
            patient_groups=self._patient_groups(columns, count),
        )
        return table, names

    def _patient_groups(
        self, columns: Mapping[str, list[str]], rows: int, of_schema: Sequence[str] = ()
    ) -> dict[str, list[str]]:
        """The groups of the columns that `groups` names; unknown in a hospital's file without such a column."""
        p, where = self.params, next(iter(self.places.values()))
        present = [name for name in of_schema if name in columns or self.is_per_hospital]
        starts = p.groups if isinstance(p.groups, dict) else dict.fromkeys((*p.groups, *present))
        groups = {}
        for name, begin in starts.items():
            if name not in columns and not self.is_per_hospital:
                raise DataError(f"{where} has no column '{name}', which `groups` names; {_columns(columns)}")
            cells = columns.get(name, [""] * rows)
            groups[name] = groups_of_column(name, cells, partial(numbers, cells, name, where), begin)
        return groups

    def _filled(self, columns: Mapping[str, list[str]], name: str | None, where: str) -> list[str]:
        assert name is not None
        cells = [cell.strip() for cell in columns[name]]
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise DataError(f"{where}: column '{name}' is empty in row {row + 1}")
        return cells

    def labels(self, cells: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
        """A class index a row and the names of the classes, in order."""
        p = self.params
        words = self._filled({str(self.label): cells}, self.label, next(iter(self.places.values())))
        try:
            as_numbers = {word: float(word) for word in set(words)}
            # 1 and 1.0 are one label, however the file spells it.
            spelling = {value: f"{value:g}" for value in as_numbers.values()}
            words = [spelling[as_numbers[word]] for word in words]
            names = tuple(spelling[value] for value in sorted(spelling))
        except ValueError:
            names = tuple(sorted(set(words)))
        if len(names) > MOST_CLASSES:
            raise DataError(
                f"{self._where}: label '{self.label}' has {len(names)} different values, more than {MOST_CLASSES}: "
                "a number to predict is not a class"
            )
        if p.positive is None:
            names = self._with_positive_last(names)
        else:
            if len(names) != 2 or p.positive not in names:
                raise ConfigError(
                    f"dataset '{self.name}': positive={p.positive!r} must be one of two labels, '{self.label}' has "
                    f"{', '.join(names)}"
                )
            names = (*(name for name in names if name != p.positive), p.positive)
        index = {name: i for i, name in enumerate(names)}
        return np.array([index[word] for word in words]), names

    def _with_times(self, classes: np.ndarray, names: Sequence[str], cells: Sequence[str]) -> np.ndarray:
        """Signed times out of classes (censored, event) and the cells of the column of times."""
        p, where = self.params, self._where
        if len(names) > 2:
            raise DataError(
                f"{where}: event '{p.event}' has {len(names)} different values, expected two: censored and event"
            )
        times = numbers(list(cells), str(p.time), where, "; expected the time to the event or to censoring")
        wrong = np.flatnonzero(~((times >= 0) & np.isfinite(times)))
        if len(wrong):
            raise DataError(
                f"{where}: time '{p.time}' is {cells[wrong[0]]!r} in row {wrong[0] + 1} ({len(wrong)} such rows), "
                "expected a number that is not negative"
            )
        return encode(times, classes == 1)

    def _with_positive_last(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Two labels with the one to predict last; says so where no word tells which one that is."""
        if len(names) != 2:
            return names
        positive = choose_positive(names)
        (other,) = (name for name in names if name != positive.name)
        if not positive.is_known:
            warnings.warn(
                f"{self._where}: label '{self.label}' is '{other}' or '{positive.name}', and '{positive.name}' "
                f"is taken for the one to predict; say dataset.positive={other} if it is the other one",
                WardroundWarning,
                stacklevel=2,
            )
        return other, positive.name


def _label_counts(targets: np.ndarray, names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(classes_of(targets), minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _columns(columns: Mapping[str, list[str]]) -> str:
    return f"its columns are {', '.join(columns)}"


def _words(cells: Sequence[str]) -> np.ndarray:
    return np.array(["" if c.strip().lower() in MISSING else canonical(c) for c in cells], dtype=object)
