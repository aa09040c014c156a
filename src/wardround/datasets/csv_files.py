"""Delimited text files, read with errors that say where."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wardround.datasets.csv_dialect import Dialect, decode, find_separator, plain_numbers
from wardround.datasets.dates import AmbiguousDates, days_of
from wardround.errors import DataError, did_you_mean

__all__ = ["MISSING", "TextTable", "numbers", "read_table", "read_text_table"]

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Cells (in lower case) that say that there is no value."""
FOUND = Dialect()
"""Everything about the file is found in it."""


@dataclass(frozen=True)
class TextTable:
    """A delimited text file as it was read."""

    columns: dict[str, list[str]]
    """Column name → cells, in the file's order. Numbers have a decimal point, whatever the file has."""
    dialect: Dialect
    """How the file is written; `decimal` is None where no number says so."""


def read_table(
    path: Path,
    required: Sequence[str],
    origin: str = "",
    dialect: Dialect = FOUND,
    missing: Collection[str] = (),
) -> dict[str, list[str]]:
    """Column name → cells of a delimited text file: see `read_text_table`."""
    return read_text_table(path, required, origin, dialect, missing).columns


def read_text_table(
    path: Path,
    required: Sequence[str] = (),
    origin: str = "",
    dialect: Dialect = FOUND,
    missing: Collection[str] = (),
) -> TextTable:
    """Read a delimited text file with a header; gzip is undone where the name ends in `.gz`.

    Args:
        path: The file.
        required: Columns that it must have.
        origin: Where a person gets the file, for messages.
        dialect: Separator, decimal sign and encoding; what is None in it is found in the file.
        missing: Words that stand for "no value" beside `MISSING`; their cells are read as empty.
    """
    tail = f"; get it from {origin}" if origin else ""
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it{tail}")
    if not path.is_file():
        raise DataError(f"{path} does not exist{tail}")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}){tail}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    text, encoding = decode(content, dialect.encoding, path)
    separator = dialect.separator or find_separator(text)
    try:
        columns = _columns(path, _rows(text, separator), required, tail)
    except csv.Error as error:
        raise DataError(f"{path} is not a delimited text file: {error}") from None
    if missing:
        columns = {
            name: ["" if cell.strip() in missing else cell for cell in cells]
            for name, cells in columns.items()
        }
    decimal = dialect.decimal
    for name, cells in columns.items():
        plain = plain_numbers(cells, dialect.decimal, MISSING, may_be_thousands=separator == ",")
        if plain is not None:
            columns[name], decimal = plain, ","
    return TextTable(columns, Dialect(separator, decimal, encoding))


def _columns(
    path: Path, rows: Iterator[tuple[int, list[str]]], required: Sequence[str], tail: str
) -> dict[str, list[str]]:
    header = [name.strip() for name in next(rows, (0, []))[1]]
    absent = [name for name in required if name not in header]
    if absent:
        raise DataError(
            f"{path} has no column '{absent[0]}'; {did_you_mean(absent[0], filter(None, header))}{tail}"
        )
    named = [name for name in header if name]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise DataError(f"{path} has two columns named '{twice}'")
    body: list[list[str]] = []
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: {len(row)} cells where the header has {len(header)}")
        body.append(row)
    if not body:
        raise DataError(f"{path} has no rows below its header{tail}")
    return {name: [row[i] for row in body] for i, name in enumerate(header) if name}


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    for row in reader:
        if row:
            yield reader.line_num, row


def numbers(cells: Sequence[str], column: str, path: Path | str, advice: str = "") -> np.ndarray:
    """Cells as float64, NaN where there is no value; dates count as days since 1970.

    A word among them is an error that shows it.
    """
    values = np.full(len(cells), np.nan)
    filled = [row for row, cell in enumerate(cells) if cell.strip().lower() not in MISSING]
    for row in filled:
        text = cells[row].strip()
        try:
            values[row] = float(text)
        except ValueError:
            days = _days([cells[row] for row in filled], column, path)
            if days is None:
                raise DataError(
                    f"{path}: column '{column}' holds {text!r} (row {row + 1}), not a number{advice}"
                ) from None
            values[filled] = days
            return values
        if np.isinf(values[row]):
            raise DataError(f"{path}: column '{column}' holds an infinite value (row {row + 1})")
    return values


def _days(cells: Sequence[str], column: str, path: Path | str) -> list[float] | None:
    try:
        return days_of(cells)
    except AmbiguousDates as shown:
        raise DataError(
            f"{path}: column '{column}' holds dates like {shown}, in which day and month cannot be told apart; "
            "write them as 2024-12-31, or name the column under `drop`"
        ) from None
