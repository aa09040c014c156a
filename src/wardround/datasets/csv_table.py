"""Your own table: a CSV file with one row per sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from wardround.datasets.base import Task, register
from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.csv_files import read_table
from wardround.datasets.table_source import Signature, TableParams, TableSource


@register("csv")
class CsvTable(TableSource):
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
    summary = "your own table: file, label (or time, event), client, drop; binary, multi-class, survival"
    licence = "yours"
    origin = "you"
    layout = "one .csv or .csv.gz file with a header, named by the option `file`"

    class Params(TableParams):
        file: Path | None = None
        files: dict[str, Path] = Field(default_factory=dict)
        """Hospital → its file, instead of `file`."""
        separator: str | None = Field(None, min_length=1, max_length=1)
        """Between cells: a comma, semicolon, tab (or any other character); default: found in the file."""
        decimal: Literal[".", ","] | None = None
        """The decimal sign; default: found in each column."""
        encoding: str | None = None
        """For example utf-8, latin-1 or utf-16; default: found in the file."""
        missing: tuple[str, ...] = Field(())
        """Further words for "no value", beside the empty cell, ?, NA, NaN, null and none."""

        @model_validator(mode="after")
        def _file_or_files(self) -> CsvTable.Params:
            if (self.file is None) == (not self.files):
                raise ValueError("give file (one table) or files (hospital: its table)")
            if self.files and self.client is not None:
                raise ValueError("with files each file is a client: leave `client` out")
            return self

    params: Params

    @property
    def paths(self) -> dict[str, Path]:
        """Hospital → its file."""
        return self.params.files or {"": Path(str(self.params.file))}

    @property
    def places(self) -> dict[str, str]:
        return {hospital: str(path) for hospital, path in self.paths.items()}

    @property
    def is_per_hospital(self) -> bool:
        return bool(self.params.files)

    def read_columns(self, hospital: str, required: Sequence[str] = ()) -> dict[str, list[str]]:
        p = self.params
        dialect = Dialect(p.separator, p.decimal, p.encoding)
        return read_table(self.paths[hospital], required, dialect=dialect, missing=p.missing)

    def signature(self) -> Signature:
        stats = [(str(path), path.stat()) for path in self.paths.values() if path.exists()]
        return tuple((name, stat.st_mtime, stat.st_size) for name, stat in stats)
