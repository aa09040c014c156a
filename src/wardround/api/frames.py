"""A user's raw table (gaps, words, dates) as columns, for the preprocessing that a federation would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from wardround.datasets.schema import canonical
from wardround.errors import DataError

__all__ = ["raw_columns"]

DAY = np.timedelta64(1, "D")


def raw_columns(values: Any, where: str) -> dict[str, np.ndarray]:
    """Column → numbers (float64, NaN where missing) or words (objects, "" where missing).

    Args:
        values: A pandas frame, a mapping of columns, or rows × features of numbers, whose columns are "0", "1", ….
        where: Opens error messages: whose table it is.
    """
    if hasattr(values, "columns"):
        cells: Mapping[str, Any] = {str(name): values[name].to_numpy() for name in values.columns}
        if len(cells) < len(values.columns):
            raise DataError(f"{where}: two columns of X have the same name")
    elif isinstance(values, Mapping):
        cells = {str(name): np.asarray(column) for name, column in values.items()}
    else:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.ndim != 2:
            raise DataError(
                f"{where}: preprocessing is for tables, rows × columns; X has the shape {array.shape}"
            )
        cells = {str(place): array[:, place] for place in range(array.shape[1])}
    return {name: _column(column, f"{where}: column '{name}'") for name, column in cells.items()}


def _column(cells: np.ndarray, where: str) -> np.ndarray:
    if cells.dtype.kind == "M":
        days = (cells - np.datetime64(0, "s")) / DAY
        return np.where(np.isnat(cells), np.nan, days)
    if cells.dtype.kind in "biuf":
        numbers = cells.astype(float)
    else:
        try:  # numbers with None or pandas' NA among them
            numbers = np.array(
                [np.nan if _is_missing(cell) else _number(cell) for cell in cells], dtype=float
            )
        except (TypeError, ValueError):
            return np.array(
                ["" if _is_missing(cell) else canonical(str(cell)) for cell in cells], dtype=object
            )
    if np.isinf(numbers).any():
        raise DataError(f"{where} holds an infinite value (row {int(np.flatnonzero(np.isinf(numbers))[0])})")
    return numbers


def _number(cell: Any) -> float:
    if isinstance(cell, str):
        raise ValueError("a word")  # "1" among words is a level, as in a file
    return float(cell)


def _is_missing(cell: Any) -> bool:
    """None, NaN, pandas' NA and NaT: the last two differ from themselves, or cannot be compared."""
    if cell is None:
        return True
    try:
        return bool(cell != cell)
    except TypeError:
        return True
