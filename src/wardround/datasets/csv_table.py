"""Your own table: a CSV file with one row per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from wardround.datasets.base import Dataset, DatasetSource, Parameters, Task, register
from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.csv_files import MISSING, numbers, read_table
from wardround.datasets.table import Table
from wardround.datasets.tabular import tabular_dataset
from wardround.errors import ConfigError, DataError

MOST_CLASSES = 50


@register("csv")
class CsvTable(DatasetSource):
    """A delimited text file (`.csv` or `.csv.gz`) with a header: one row per sample, one column with the label.

    Every column is a numeric feature unless it is named otherwise: `label`, `client` (its values become the
    clients of the `natural` partition), `patient` (rows of one patient stay in one split), `categorical`
    (one-hot encoded) or `drop`. Dates are numbers of days. Separator, decimal sign and encoding are found in the
    file. Two labels make a binary task, more a multi-class one.

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

    class Params(Parameters):
        file: Path
        label: str
        client: str | None = None
        patient: str | None = None
        """Rows with the same value are one patient's; default: every row is a patient of its own."""
        categorical: tuple[str, ...] = ()
        drop: tuple[str, ...] = ()
        positive: str | None = None
        """Of two labels the one to predict; default: the later in order (1 of 0 and 1, yes of no and yes)."""
        separator: str | None = Field(None, min_length=1, max_length=1)
        """Between cells: a comma, semicolon, tab (or any other character); default: found in the file."""
        decimal: Literal[".", ","] | None = None
        """The decimal sign; default: found in each column."""
        encoding: str | None = None
        """For example utf-8, latin-1 or utf-16; default: found in the file."""
        missing: tuple[str, ...] = Field(())
        """Further words for "no value", beside the empty cell, ?, NA, NaN, null and none."""

    params: Params

    def load(self, seed: int) -> Dataset:
        p = self.params
        named = [p.label, *filter(None, (p.client, p.patient)), *p.categorical, *p.drop]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ConfigError(f"dataset 'csv': column '{twice}' is given two roles")
        dialect = Dialect(p.separator, p.decimal, p.encoding)
        columns = read_table(p.file, named, dialect=dialect, missing=p.missing)
        targets, names = self._classes(columns[p.label])
        features = [name for name in columns if name not in named]
        if not features and not p.categorical:
            raise DataError(f"{p.file}: no column is left to be a feature beside {', '.join(named)}")
        advice = "; name the column under `categorical` or `drop`, or fix the cell"
        count = len(targets)
        table = Table(
            numeric={name: numbers(columns[name], name, p.file, advice) for name in features},
            categorical={
                name: np.array(["" if c.strip().lower() in MISSING else c.strip() for c in columns[name]])
                for name in p.categorical
            },
            targets=targets,
            units=self._filled(columns, p.patient) if p.patient else np.arange(count),
            groups=self._filled(columns, p.client) if p.client else None,
            facts={"rows": count, "labels": {n: int((targets == i).sum()) for i, n in enumerate(names)}},
        )
        task = Task.BINARY if len(names) == 2 else Task.MULTICLASS
        return tabular_dataset(self.name, task, names, table, seed, label=p.label)

    def _filled(self, columns: dict[str, list[str]], name: str) -> list[str]:
        cells = [cell.strip() for cell in columns[name]]
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise DataError(f"{self.params.file}: column '{name}' is empty in row {row + 1}")
        return cells

    def _classes(self, cells: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
        """A class index a row and the names of the classes, in order."""
        p = self.params
        words = self._filled({p.label: cells}, p.label)
        try:
            as_numbers = {word: float(word) for word in set(words)}
            # 1 and 1.0 are one label, however the file spells it.
            spelling = {value: f"{value:g}" for value in as_numbers.values()}
            words = [spelling[as_numbers[word]] for word in words]
            names = tuple(spelling[value] for value in sorted(spelling))
        except ValueError:
            names = tuple(sorted(set(words)))
        if len(names) < 2:
            raise DataError(
                f"{p.file}: label '{p.label}' is {names[0]!r} in every row; two classes are needed"
            )
        if len(names) > MOST_CLASSES:
            raise DataError(
                f"{p.file}: label '{p.label}' has {len(names)} different values, more than {MOST_CLASSES}: "
                "a number to predict is not a class"
            )
        if p.positive is not None:
            if len(names) != 2 or p.positive not in names:
                raise ConfigError(
                    f"dataset 'csv': positive={p.positive!r} must be one of two labels, '{p.label}' has "
                    f"{', '.join(names)}"
                )
            names = (*(name for name in names if name != p.positive), p.positive)
        index = {name: i for i, name in enumerate(names)}
        return np.array([index[word] for word in words]), names
