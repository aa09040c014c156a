"""Patient groups: the sex, age band and site of each sample, for figures per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

__all__ = ["AGE_BANDS", "SEXES", "UNKNOWN_GROUP", "PatientGroups", "bands", "group_names", "groups_of_rows"]

PatientGroups = Mapping[str, Sequence[str]]
UNKNOWN_GROUP = "unknown"
"""The group of samples for which an attribute is missing."""
AGE_BANDS = (40, 60, 80)
"""Years at which a new age band begins."""
SEXES = {"f": "female", "m": "male", "female": "female", "male": "male"}
"""Spelling of a sex, in lower case → name of the group."""


def groups_of_rows(patient_groups: PatientGroups, rows: np.ndarray) -> dict[str, tuple[str, ...]]:
    """The patient groups of some rows."""
    return {
        attribute: tuple(np.asarray(of_row, dtype=str)[rows].tolist())
        for attribute, of_row in patient_groups.items()
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
        missing = word.lower() in {"", "?", "na", "n/a", "nan", "null", "none", UNKNOWN_GROUP}
        result.append(UNKNOWN_GROUP if missing else (names or {}).get(word.lower(), word))
    return result
