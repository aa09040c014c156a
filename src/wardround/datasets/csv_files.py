"""Delimited text files, read with errors that say where."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wardround.errors import DataError, did_you_mean

__all__ = ["MISSING", "numbers", "read_table"]

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Cells (in lower case) that say that there is no value."""


def read_table(path: Path, required: Sequence[str], origin: str = "") -> dict[str, list[str]]:
    """Column name → cells, in the file's order; gzip is undone where the name ends in `.gz`."""
    tail = f"; get it from {origin}" if origin else ""
    if not path.is_file():
        raise DataError(f"{path} does not exist{tail}")
    try:
        return _columns(path, required, tail)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}){tail}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}){tail}") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a delimited text file: {error}") from None


def _columns(path: Path, required: Sequence[str], tail: str) -> dict[str, list[str]]:
    rows = _rows(path)
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


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text)
        for row in reader:
            if row:
                yield reader.line_num, row


def numbers(cells: Sequence[str], column: str, path: Path, advice: str = "") -> np.ndarray:
    """Cells as float64, NaN where there is no value; a word among them is an error that shows it."""
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        text = cell.strip()
        try:
            values[row] = np.nan if text.lower() in MISSING else float(text)
        except ValueError:
            raise DataError(
                f"{path}: column '{column}' holds {text!r} (row {row + 1}), not a number{advice}"
            ) from None
        if np.isinf(values[row]):
            raise DataError(f"{path}: column '{column}' holds an infinite value (row {row + 1})")
    return values
