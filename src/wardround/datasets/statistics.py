"""What a client says about its table before training, and how the server makes one thing of many such statements.

A statement has counts, means, spreads, a few quantiles and levels; no row. What fewer patients than a floor have is
not said. A client may lie: the merge uses weighted medians, and no client weighs more than the median client, so that
a minority moves no centre or scale beyond what the others say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wardround.datasets.schema import MOST_COLUMNS, MOST_LEVELS, canonical
from wardround.datasets.table import Table
from wardround.datasets.targets import classes_of
from wardround.errors import DataError

__all__ = [
    "MIN_COUNT", "QUANTILES", "CategoryStatistics", "MergedNumber", "NumberStatistics", "TableStatistics",
    "describe_table", "merge_numbers", "weighted_median",
]  # fmt: skip

MIN_COUNT = 5
"""Patients below which nothing is said of them: the floor that is used if nobody sets another."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LARGEST_COUNT = 2**53
LONGEST_NAME = 200


@dataclass(frozen=True)
class NumberStatistics:
    """A client's values of one column of numbers."""

    count: int
    """Values that are known; 0 where they are too few to say anything of them."""
    missing: float
    """Share of rows without a value."""
    mean: float = 0.0
    spread: float = 0.0
    """Standard deviation."""
    quantiles: Mapping[float, float] | None = None
    """Share of values below → value; only those beyond which enough values lie on either side."""

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"type": "number", "count": self.count, "missing": self.missing}
        if self.count:
            values |= {"mean": self.mean, "spread": self.spread}
            values["quantiles"] = {f"{share:g}": value for share, value in (self.quantiles or {}).items()}
        return values


@dataclass(frozen=True)
class CategoryStatistics:
    """A client's words in one column."""

    count: int
    missing: float
    levels: Mapping[str, int]
    """Level → rows; only levels that enough rows have."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": "category", "count": self.count, "missing": self.missing, "levels": dict(self.levels)
        }  # fmt: skip


@dataclass(frozen=True)
class TableStatistics:
    """What one client says about its training rows."""

    rows: int
    classes: Mapping[str, int]
    """Class → rows; only classes that enough rows have."""
    columns: Mapping[str, NumberStatistics | CategoryStatistics]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what is sent."""
        return {
            "rows": self.rows,
            "classes": dict(self.classes),
            "columns": {name: column.to_dict() for name, column in self.columns.items()},
        }

    @classmethod
    def from_dict(cls, values: Any) -> TableStatistics:
        """What a client sent, checked: counts are counts, numbers are finite, nothing is absurdly long."""
        try:
            columns = dict(values["columns"])
            if len(columns) > MOST_COLUMNS:
                raise ValueError(f"{len(columns)} columns, more than {MOST_COLUMNS}")
            return cls(
                _count(values["rows"]),
                _counts(values["classes"]),
                {_name(name): _column(column) for name, column in columns.items()},
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"statistics that cannot be read ({type(error).__name__}: {str(error)[:80]})"
            ) from None


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_COUNT:
        raise ValueError(f"{str(value)[:20]} is no count")
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _share(value: Any) -> float:
    share = _finite(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is no share")
    return share


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise ValueError("a name that is no word, or too long")
    return value


def _counts(values: Any) -> dict[str, int]:
    counts = {_name(name): _count(count) for name, count in dict(values).items()}
    if len(counts) > MOST_LEVELS:
        raise ValueError(f"{len(counts)} levels, more than {MOST_LEVELS}")
    return counts


def _column(values: Any) -> NumberStatistics | CategoryStatistics:
    count, missing = _count(values["count"]), _share(values["missing"])
    if values["type"] == "category":
        return CategoryStatistics(count, missing, _counts(values["levels"]))
    if values["type"] != "number":
        raise ValueError("a column of no known type")
    if not count:
        return NumberStatistics(0, missing)
    quantiles = {_share(share): _finite(value) for share, value in dict(values["quantiles"]).items()}
    spread = _finite(values["spread"])
    if spread < 0 or len(quantiles) > len(QUANTILES):
        raise ValueError("a negative spread, or too many quantiles")
    return NumberStatistics(count, missing, _finite(values["mean"]), spread, quantiles)


def describe_table(
    table: Table, rows: np.ndarray, class_names: Sequence[str], min_count: int = MIN_COUNT
) -> TableStatistics:
    """What a client says about its training rows.

    Args:
        table: All rows that the client, or the simulation, has.
        rows: The client's training rows among them.
        class_names: One per class of the table's targets.
        min_count: The floor: fewer rows than this are not spoken of.
    """
    counts = np.bincount(classes_of(np.asarray(table.targets)[rows]), minlength=len(class_names))
    classes = {
        name: int(count) for name, count in zip(class_names, counts, strict=True) if count >= min_count
    }
    columns: dict[str, NumberStatistics | CategoryStatistics] = {}
    for name, values in table.numeric.items():
        columns[name] = _describe_numbers(np.asarray(values, dtype=float)[rows], min_count)
    for name, words in table.categorical.items():
        columns[name] = _describe_words(words[rows], min_count)
    return TableStatistics(len(rows), classes, columns)


def _describe_numbers(values: np.ndarray, min_count: int) -> NumberStatistics:
    known = values[~np.isnan(values)]
    count, missing = _with_floor(len(known), len(values), min_count)
    if not count:
        return NumberStatistics(0, missing)
    spread = float(known.std())
    noise = 10 * np.finfo(float).eps * max(1.0, float(np.abs(known).max()))
    # Rounding must not pass for variation: a constant column deviates by about its last bit.
    spread = spread if spread > noise else 0.0
    # Four digits of the spread are enough to standardise by; more would say more of single patients.
    digits = 12 if spread == 0 else 4 - math.floor(math.log10(spread))
    shares = [share for share in QUANTILES if min(share, 1 - share) * count >= min_count]
    quantiles = np.quantile(known, shares) if shares else ()
    return NumberStatistics(
        count,
        missing,
        round(float(known.mean()), digits),
        round(spread, digits),
        {share: round(float(value), digits) for share, value in zip(shares, quantiles, strict=True)},
    )


def _describe_words(words: np.ndarray, min_count: int) -> CategoryStatistics:
    known = [canonical(str(word)) for word in words.tolist() if word]
    levels, counts = np.unique(np.array(known, dtype=str), return_counts=True)
    count, missing = _with_floor(len(known), len(words), min_count)
    frequent = sorted(
        ((str(level), int(n)) for level, n in zip(levels, counts, strict=True) if n >= min_count),
        key=lambda pair: (-pair[1], pair[0]),
    )[:MOST_LEVELS]
    return CategoryStatistics(count, missing, dict(sorted(frequent)))


def _with_floor(known: int, rows: int, min_count: int) -> tuple[int, float]:
    """Count of known values and share of missing ones, where a few are none."""
    gaps = rows - known
    count = known if known >= min_count else 0
    return count, round((gaps if gaps >= min_count else 0) / rows, 4) if rows else 0.0


@dataclass(frozen=True)
class MergedNumber:
    """One column of numbers, as the clients together see it."""

    centre: float
    scale: float
    """1 where the column does not vary at most clients."""
    median: float


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value with half of the weight on either side; between two such values, their mean.

    >>> weighted_median([1.0, 2.0, 1000.0], [1, 1, 1]), weighted_median([1.0, 3.0], [1, 1])
    (2.0, 2.0)
    """
    order = np.argsort(np.asarray(values, dtype=float), kind="stable")
    ordered = np.asarray(values, dtype=float)[order]
    reached = np.asarray(weights, dtype=float)[order].cumsum()
    half = reached[-1] / 2
    first = int(np.searchsorted(reached, half))
    if reached[first] == half and first + 1 < len(ordered):
        return float(ordered[first] / 2 + ordered[first + 1] / 2)
    return float(ordered[first])


def merge_numbers(clients: Sequence[NumberStatistics]) -> MergedNumber:
    r"""Centre, scale and median of a column by what clients say of it.

    With the counts :math:`n_k` of known values, client k weighs :math:`\min(n_k, \mathrm{median}(n))`: a client that
    claims many patients weighs no more than the median client does. Centre, scale and median are the weighted medians
    of the means, the standard deviations and the medians. So less than half of the weight moves none of them beyond
    the range of what the others say.
    """
    known = [client for client in clients if client.count]
    if not known:
        return MergedNumber(0.0, 1.0, 0.0)
    cap = sorted(client.count for client in known)[(len(known) - 1) // 2]
    weights = [min(client.count, cap) for client in known]
    centre = weighted_median([client.mean for client in known], weights)
    scale = weighted_median([client.spread for client in known], weights)
    # A client too small to say its median is represented by its mean: it must not leave the word to others.
    medians = [(client.quantiles or {}).get(0.5, client.mean) for client in known]
    median = weighted_median(medians, weights)
    return MergedNumber(centre, scale if scale > 0 else 1.0, median)
