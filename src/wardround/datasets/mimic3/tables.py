"""The raw tables of MIMIC-III: where they are, their headers, and how DuckDB streams them."""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from wardround.errors import DataError

__all__ = ["COLUMNS", "RawTable", "locate"]

COLUMNS = {
    "PATIENTS": ("subject_id", "gender", "dob"),
    "ADMISSIONS": ("subject_id", "hadm_id", "admission_type", "hospital_expire_flag"),
    "ICUSTAYS": ("subject_id", "hadm_id", "icustay_id", "first_careunit", "intime", "outtime"),
    "LABEVENTS": ("subject_id", "itemid", "charttime", "value", "valuenum", "valueuom"),
    "OUTPUTEVENTS": ("subject_id", "icustay_id", "itemid", "charttime", "value", "valueuom", "iserror"),
    "CHARTEVENTS": (
        "subject_id", "icustay_id", "itemid", "charttime", "value", "valuenum", "valueuom", "error",
    ),
}  # fmt: skip
"""Table → the columns that are used, in lower case (the full release has capitals, the demo has not)."""


@dataclass(frozen=True)
class RawTable:
    """A table on disk and its columns, in the file's order and in lower case."""

    path: Path
    columns: tuple[str, ...]

    @property
    def sql(self) -> str:
        """A DuckDB expression that streams the table as text.

        Everything is said explicitly: left to guess, DuckDB takes a file whose first rows have no quotes for
        one without quoting, and fails a million rows later.
        """
        kinds = ", ".join(f"{_quoted(name)}: 'VARCHAR'" for name in self.columns)
        return (
            f"read_csv({_quoted(str(self.path))}, auto_detect=false, header=true, delim=',', quote='\"', "
            f"escape='\"', nullstr='', columns={{{kinds}}})"
        )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def locate(folder: Path, origin: str) -> dict[str, RawTable]:
    """Every table that is needed, or an error that says which file or column is not there."""
    tables = {}
    for name, wanted in COLUMNS.items():
        path = _file(folder, name, origin)
        columns = _header(path, origin)
        missing = [column for column in wanted if column not in columns]
        if missing:
            raise DataError(
                f"{path} has no column '{missing[0]}' (in either case); its header is {', '.join(columns)}; "
                f"get it from {origin}"
            )
        tables[name] = RawTable(path, columns)
    return tables


def _file(folder: Path, name: str, origin: str) -> Path:
    for stem in (name, name.lower()):
        for ending in (".csv", ".csv.gz"):
            if (folder / (stem + ending)).is_file():
                return folder / (stem + ending)
    raise DataError(
        f"{folder} has no {name}.csv or {name}.csv.gz; expected the tables {', '.join(COLUMNS)}; get them from {origin}"
    )


def _header(path: Path, origin: str) -> tuple[str, ...]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8-sig", newline=""
        ) as text:
            line = text.readline(1 << 16)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); get it from {origin}") from None
    columns = tuple(name.strip().lower() for name in next(csv.reader([line]), []))
    if not columns or len(set(columns)) < len(columns) or "" in columns:
        raise DataError(f"{path} has no usable header: {line.strip()[:100]!r}; get it from {origin}")
    return columns
