"""Patient groups: the sex, age band and site of each sample, for figures per group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from wardround.errors import ConfigError

__all__ = [
    "AGE_BANDS", "SEXES", "UNKNOWN_GROUP", "PatientGroups", "ages", "bands", "group_names", "groups_of_column",
    "groups_of_rows", "in_order", "person_groups", "rows_of_groups",
]  # fmt: skip

PatientGroups = Mapping[str, Sequence[str]]
UNKNOWN_GROUP = "unknown"
"""The group of samples for which an attribute is missing."""
AGE_BANDS = (40, 60, 80)
"""Years at which a new age band begins."""
SEXES = {"f": "female", "m": "male", "female": "female", "male": "male"}
"""Spelling of a sex, in lower case → name of the group."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", UNKNOWN_GROUP})
OLDEST = 125
"""Years; the chest X-rays of the NIH list a patient of 414."""
MOST_GROUPS = 20
"""Different values of a column from which on it is no longer one of patient groups."""


def groups_of_rows(patient_groups: PatientGroups, rows: np.ndarray) -> dict[str, tuple[str, ...]]:
    """The patient groups of some rows."""
    return {
        attribute: tuple(np.asarray(of_row, dtype=str)[rows].tolist())
        for attribute, of_row in patient_groups.items()
    }


def rows_of_groups(patient_groups: PatientGroups) -> dict[str, dict[str, np.ndarray]]:
    """Attribute → patient group, as people list them → its rows.

    >>> rows_of_groups({"sex": ["male", "female", "male"]})
    {'sex': {'female': array([1]), 'male': array([0, 2])}}
    """
    named = {attribute: np.asarray(of_row, dtype=str) for attribute, of_row in patient_groups.items()}
    return {
        attribute: {name: np.flatnonzero(names == name) for name in in_order(np.unique(names).tolist())}
        for attribute, names in named.items()
    }


def bands(values: Sequence[float] | np.ndarray, starts: Sequence[float] = AGE_BANDS) -> list[str]:
    """Numbers (ages in years) as names of bands that begin at `starts`; a missing one (NaN) is unknown.

    >>> bands([39.9, 40, 85, float("nan")])
    ['<40', '40-59', '80+', 'unknown']
    >>> bands([0.5, 2], [1])
    ['<1', '1+']
    """
    whole = all(float(start).is_integer() for start in starts)
    middle = [f"{low:g}-{high - 1:g}" if whole else f"{low:g} to {high:g}" for low, high in pairwise(starts)]
    names = [f"<{starts[0]:g}", *middle, f"{starts[-1]:g}+"]
    place = np.searchsorted(np.asarray(starts, dtype=float), np.asarray(values, dtype=float), side="right")
    unknown = np.isnan(np.asarray(values, dtype=float))
    return [UNKNOWN_GROUP if gap else names[i] for i, gap in zip(place, unknown, strict=True)]


def group_names(cells: Sequence[str] | np.ndarray, names: Mapping[str, str] | None = None) -> list[str]:
    """Words as group names: one spelling per group, `unknown` for a missing one.

    >>> group_names(["F", "m", "", "NaN"], SEXES)
    ['female', 'male', 'unknown', 'unknown']
    """
    result = []
    for cell in cells:
        word = str(cell).strip()
        result.append(UNKNOWN_GROUP if word.lower() in MISSING else (names or {}).get(word.lower(), word))
    return result


def in_order(groups: Iterable[str]) -> list[str]:
    """Names of groups as people list them: bands by their numbers, words by the alphabet, unknown last.

    >>> in_order(["unknown", "80+", "<40", "5-9", "40-79", "b", "a"])
    ['<40', '5-9', '40-79', '80+', 'a', 'b', 'unknown']
    """

    def key(name: str) -> tuple[bool, bool, float, str]:
        digits = re.match(r"\d+(\.\d+)?", name)
        number = -math.inf if name.startswith("<") else float(digits.group()) if digits else math.inf
        return name == UNKNOWN_GROUP, number == math.inf, number, name

    return sorted(groups, key=key)


def person_groups(
    sex: Sequence[str] | np.ndarray | None = None,
    age: Sequence[float] | np.ndarray | None = None,
    site: Sequence[str] | np.ndarray | None = None,
) -> dict[str, list[str]]:
    """Sex, age band and site, where the data has them.

    >>> person_groups(sex=["F"], age=[71.0])
    {'sex': ['female'], 'age': ['60-79']}
    """
    groups = {}
    if sex is not None:
        groups["sex"] = group_names(sex, SEXES)
    if age is not None:
        groups["age"] = bands(age)
    if site is not None:
        groups["site"] = group_names(site)
    return groups


def ages(cells: Sequence[str] | None) -> list[float] | None:
    """Texts as years; NaN where there is no plausible number; None for no column.

    >>> ages(["60", "060Y", "", "414"])
    [60.0, 60.0, nan, nan]
    """
    if cells is None:
        return None
    years = []
    for cell in cells:
        text = cell.strip().removesuffix("Y")
        try:
            value = float(text) if text.lower() not in MISSING else math.nan
        except ValueError:
            value = math.nan
        years.append(value if 0 <= value <= OLDEST else math.nan)
    return years


def groups_of_column(
    name: str, cells: Sequence[str], numbers: Callable[[], np.ndarray], starts: Sequence[float] | None = None
) -> list[str]:
    """The groups that a column of a table makes.

    A column of few values has a group per value. One of many numbers is cut into bands: at `starts`, or an age at the
    usual ones.

    Args:
        name: of the column.
        cells: its texts.
        numbers: reads them as numbers, or raises an error that says which is none.
        starts: numbers at which a new group begins.

    >>> groups_of_column("Gender", ["f", "M", ""], lambda: np.zeros(3))
    ['female', 'male', 'unknown']
    """
    if starts:
        return bands(numbers(), sorted(starts))
    names = group_names(cells, SEXES if name.lower() in ("sex", "gender") else None)
    different = len(set(names) - {UNKNOWN_GROUP})
    if different <= MOST_GROUPS:
        return names
    if name.lower().startswith("age"):
        return bands(numbers())
    raise ConfigError(
        f"groups: column '{name}' has {different} different values, more than {MOST_GROUPS}; "
        f"say where new groups begin: groups: {{{name}: [25, 30]}}"
    )
