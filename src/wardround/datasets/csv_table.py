"""Your own table: a CSV file with one row per sample."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from wardround.datasets.base import Dataset, DatasetSource, Task, register
from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.csv_files import MISSING, numbers, read_table
from wardround.datasets.label_words import choose_positive
from wardround.datasets.patient_groups import groups_of_column
from wardround.datasets.schema import Schema, SchemaOption, canonical
from wardround.datasets.schema_check import conform
from wardround.datasets.table import Table
from wardround.datasets.tabular import tabular_dataset
from wardround.errors import ConfigError, DataError, WardroundWarning

MOST_CLASSES = 50


@register("csv")
class CsvTable(DatasetSource):
    """A delimited text file (`.csv` or `.csv.gz`) with a header: one row per sample, one column with the label.

    Every column is a numeric feature unless it is named otherwise: `label`, `client` (its values become the
    clients of the `natural` partition), `patient` (rows of one patient stay in one split), `categorical`
    (one-hot encoded) or `drop`. Dates are numbers of days. Separator, decimal sign and encoding are found in the
    file. Two labels make a binary task, more a multi-class one.

    With a `schema` (a file that `wardround schema infer` writes) columns, levels and classes are those of the schema,
    and what does not fit it is an error. `files` has one file per hospital instead of one `file`: the hospitals are
    the clients of the `natural` partition, and each one's rows are split as it would split them itself.

    >>> import tempfile; from wardround import datasets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "stays.csv")
    ...     lines = [f"{40 + i},{i % 3},{'north' if i % 2 else 'south'},{i % 2}" for i in range(40)]
    ...     _ = path.write_text("age,score,site,died\\n" + "\\n".join(lines))
    ...     data = datasets.create("csv", file=path, label="died", client="site").load(seed=0)
    >>> data.task.value, data.feature_names, data.class_names, sorted(set(data.train.groups))
    ('binary', ('age', 'score'), ('0', '1'), ['north', 'south'])
    """

    task = Task.BINARY
    summary = "your own table: file, label, client (natural split), drop; binary or multi-class"
    licence = "yours"
    origin = "you"
    layout = "one .csv or .csv.gz file with a header, named by the option `file`"

    class Params(SchemaOption):
        file: Path | None = None
        files: dict[str, Path] = Field(default_factory=dict)
        """Hospital → its file, instead of `file`."""
        label: str | None = None
        """Required where there is no schema."""
        client: str | None = None
        patient: str | None = None
        """Rows with the same value are one patient's; default: every row is a patient of its own."""
        categorical: tuple[str, ...] = ()
        drop: tuple[str, ...] = ()
        positive: str | None = None
        """Of two labels the one to predict; default: 1 of 0 and 1, and the one that says yes, in many languages
        (ja of nein and ja, died of alive and died). Where no word tells, the later in order, with a warning."""
        separator: str | None = Field(None, min_length=1, max_length=1)
        """Between cells: a comma, semicolon, tab (or any other character); default: found in the file."""
        decimal: Literal[".", ","] | None = None
        """The decimal sign; default: found in each column."""
        encoding: str | None = None
        """For example utf-8, latin-1 or utf-16; default: found in the file."""
        missing: tuple[str, ...] = Field(())
        """Further words for "no value", beside the empty cell, ?, NA, NaN, null and none."""

        groups: tuple[str, ...] | dict[str, tuple[float, ...] | None] = ()
        """Columns of patient groups, for figures per group: `[sex, age]`, or with the numbers at which new groups
        begin: `{sex: null, age: [40, 60]}`. They may be features or not."""

        @model_validator(mode="after")
        def _file_or_files(self) -> CsvTable.Params:
            if (self.file is None) == (not self.files):
                raise ValueError("give file (one table) or files (hospital: its table)")
            if self.files and self.client is not None:
                raise ValueError("with files each file is a client: leave `client` out")
            said = [key for key in ("categorical", "drop", "positive") if getattr(self, key)]
            if self.schema is not None and said:
                raise ValueError(f"the schema says what the columns are: leave {', '.join(said)} out")
            return self

    params: Params

    @property
    def needs_schema(self) -> bool:
        """Is nothing said of the columns, so that only a schema from elsewhere can say it?"""
        return self.params.label is None and self.params.schema is None

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return list(self._paths.values())

    def count_rows(self) -> int:
        """How many rows the files have; raises `DataError` for one that cannot be read as a table."""
        return sum(len(next(iter(self._read(path).values()))) for path in self.paths)

    def load(self, seed: int) -> Dataset:
        p = self.params
        if (schema := p.given_schema()) is not None:
            return self._load(schema, seed, check=True)
        table, names = self.read_table()
        if len(names) < 2:
            raise DataError(
                f"{self._where}: label '{p.label}' is {names[0]!r} in every row; two classes are needed"
            )
        task = Task.BINARY if len(names) == 2 else Task.MULTICLASS
        return tabular_dataset(self.name, task, names, table, seed, label=str(p.label))

    def load_as(self, schema: Schema, seed: int) -> Dataset:
        return self._load(schema, seed, check=False)

    def _load(self, schema: Schema, seed: int, check: bool) -> Dataset:
        """The table as a schema has it; a hospital may lack a class, a simulation as a whole may not."""
        p = self.params
        if p.label not in (None, schema.label.name):
            raise ConfigError(
                f"dataset 'csv': label is '{p.label}', but the schema's is '{schema.label.name}'"
            )
        names = schema.label.classes
        tables = []
        for hospital, path in self._paths.items():
            columns = self._read(path)
            patient, client = p.patient or schema.patient, p.client or schema.client
            conformed = conform(columns, schema, str(path))
            assert conformed.targets is not None
            count = len(conformed.targets)
            groups = [hospital] * count if self.params.files else None
            if client is not None and client in columns and groups is None:
                groups = self._filled(columns, client, path)
            units = self._filled(columns, patient, path) if patient in columns else list(range(count))
            table = Table(conformed.numeric, conformed.categorical, conformed.targets, units, groups)
            tables.append(replace(table, patient_groups=self._patient_groups(columns, count, schema.groups)))
        task = Task.BINARY if len(names) == 2 else Task.MULTICLASS
        return tabular_dataset(self.name, task, names, self._joined(tables, names), seed, schema, check=check)

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
            {"rows": len(targets), "labels": {n: int((targets == i).sum()) for i, n in enumerate(names)}},
            split_apart=bool(self.params.files),
            patient_groups={
                name: [group for table in tables for group in table.patient_groups[name]]
                for name in tables[0].patient_groups
            },
        )

    @property
    def _paths(self) -> dict[str, Path]:
        return self.params.files or {"": Path(str(self.params.file))}

    @property
    def _where(self) -> str:
        return ", ".join(str(path) for path in self._paths.values())

    def _read(self, path: Path, required: Sequence[str] = ()) -> dict[str, list[str]]:
        p = self.params
        dialect = Dialect(p.separator, p.decimal, p.encoding)
        return read_table(path, required, dialect=dialect, missing=p.missing)

    def read_table(self) -> tuple[Table, tuple[str, ...]]:
        """The table without a schema, by what the options say, and the classes that occur in it."""
        p = self.params
        if p.label is None:
            raise ConfigError("dataset 'csv': 'label' (or a schema) is required")
        named = [p.label, *filter(None, (p.client, p.patient)), *p.categorical, *p.drop]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ConfigError(f"dataset 'csv': column '{twice}' is given two roles")
        several = bool(p.files)
        texts = {
            name: self._read(path, [p.label] if several else named) for name, path in self._paths.items()
        }
        order = dict.fromkeys(column for text in texts.values() for column in text)
        lengths = {name: len(text[p.label]) for name, text in texts.items()}
        # A column that one hospital's file lacks is empty there.
        columns = {
            column: [cell for name, text in texts.items() for cell in text.get(column, [""] * lengths[name])]
            for column in order
        }
        targets, names = self.labels(columns[p.label])
        features = [name for name in columns if name not in named]
        categorical = [name for name in p.categorical if name in columns]
        if not features and not categorical:
            raise DataError(f"{self._where}: no column is left to be a feature beside {', '.join(named)}")
        advice = "; name the column under `categorical` or `drop`, or fix the cell"
        path = next(iter(self._paths.values()))
        count = len(targets)
        units: list[object] = [row for length in lengths.values() for row in range(length)]
        if p.patient:
            units = list(self._filled(columns, p.patient, path))
        groups = self._filled(columns, p.client, path) if p.client else None
        if several:
            groups = [name for name in texts for _ in range(lengths[name])]
        table = Table(
            numeric={name: numbers(columns[name], name, path, advice) for name in features},
            categorical={name: _words(columns[name]) for name in categorical},
            targets=targets,
            units=units,
            groups=groups,
            facts={"rows": count, "labels": {n: int((targets == i).sum()) for i, n in enumerate(names)}},
            split_apart=several,
            patient_groups=self._patient_groups(columns, count),
        )
        return table, names

    def _patient_groups(
        self, columns: Mapping[str, list[str]], rows: int, of_schema: Sequence[str] = ()
    ) -> dict[str, list[str]]:
        """The groups of the columns that `groups` names; unknown in a hospital's file without such a column."""
        p, path = self.params, next(iter(self._paths.values()))
        present = [name for name in of_schema if name in columns or p.files]
        starts = p.groups if isinstance(p.groups, dict) else dict.fromkeys((*p.groups, *present))
        groups = {}
        for name, begin in starts.items():
            if name not in columns and not p.files:
                raise DataError(f"{path} has no column '{name}', which `groups` names; {_columns(columns)}")
            cells = columns.get(name, [""] * rows)
            groups[name] = groups_of_column(name, cells, partial(numbers, cells, name, path), begin)
        return groups

    def _filled(self, columns: Mapping[str, list[str]], name: str | None, path: Path) -> list[str]:
        assert name is not None
        cells = [cell.strip() for cell in columns[name]]
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise DataError(f"{path}: column '{name}' is empty in row {row + 1}")
        return cells

    def labels(self, cells: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
        """A class index a row and the names of the classes, in order."""
        p = self.params
        words = self._filled({str(p.label): cells}, p.label, next(iter(self._paths.values())))
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
                f"{self._where}: label '{p.label}' has {len(names)} different values, more than {MOST_CLASSES}: "
                "a number to predict is not a class"
            )
        if p.positive is None:
            names = self._with_positive_last(names)
        else:
            if len(names) != 2 or p.positive not in names:
                raise ConfigError(
                    f"dataset 'csv': positive={p.positive!r} must be one of two labels, '{p.label}' has "
                    f"{', '.join(names)}"
                )
            names = (*(name for name in names if name != p.positive), p.positive)
        index = {name: i for i, name in enumerate(names)}
        return np.array([index[word] for word in words]), names

    def _with_positive_last(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Two labels with the one to predict last; says so where no word tells which one that is."""
        if len(names) != 2:
            return names
        positive = choose_positive(names)
        (other,) = (name for name in names if name != positive.name)
        if not positive.is_known:
            warnings.warn(
                f"{self._where}: label '{self.params.label}' is '{other}' or '{positive.name}', and '{positive.name}' "
                f"is taken for the one to predict; say dataset.positive={other} if it is the other one",
                WardroundWarning,
                stacklevel=2,
            )
        return other, positive.name


def _columns(columns: Mapping[str, list[str]]) -> str:
    return f"its columns are {', '.join(columns)}"


def _words(cells: Sequence[str]) -> np.ndarray:
    return np.array(["" if c.strip().lower() in MISSING else canonical(c) for c in cells], dtype=object)
