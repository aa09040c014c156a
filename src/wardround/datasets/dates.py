"""Dates as numbers: days since 1 January 1970."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

__all__ = ["AmbiguousDates", "days_of"]

DAY = 86_400.0
_TIME = r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_TIME}")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(\d{{4}}){_TIME}")


class AmbiguousDates(ValueError):
    """A column of dates that can be read with the day or the month first."""


def days_of(cells: Iterable[str]) -> list[float] | None:
    """Each cell as days since 1970; None where one of them is no date.

    Known are 2024-03-31, 2024/03/31, 31.03.2024, 31/03/2024 and 03/31/2024, with a time of day or without. With
    points the day comes first; with slashes or dashes the column says which it is by a number above 12.

    >>> days_of(["1970-01-02", "1970-01-03 12:00"]), days_of(["02.01.1970"]), days_of(["02.01.1970", "soon"])
    ([1.0, 2.5], [1.0], None)

    Raises:
        AmbiguousDates: No date of the column says whether day or month comes first.
    """
    words = [cell.strip() for cell in cells]
    matches = [_YEAR_FIRST.fullmatch(word) for word in words]
    try:
        if words and all(matches):
            return [_day(int(m[1]), int(m[2]), int(m[3]), m.groups()[3:]) for m in matches if m]
        matches = [_YEAR_LAST.fullmatch(word) for word in words]
        if not words or not all(matches):
            return None
        found = [m for m in matches if m]
        day_first = _is_day_first(found)
        return [
            _day(int(m[4]), int(m[3 if day_first else 1]), int(m[1 if day_first else 3]), m.groups()[4:])
            for m in found
        ]
    except AmbiguousDates:
        raise
    except ValueError:  # a month 13, a 30th of February: these are no dates
        return None


def _is_day_first(matches: list[re.Match[str]]) -> bool:
    if all(m[2] == "." for m in matches):
        return True
    if any(int(m[1]) > 12 for m in matches):
        return True
    if any(int(m[3]) > 12 for m in matches):
        return False
    if all(m[1] == m[3] for m in matches):
        return True
    raise AmbiguousDates(matches[0][0])


def _day(year: int, month: int, day: int, time: tuple[str | None, ...]) -> float:
    hours, minutes, seconds = (int(part or 0) for part in time[:3])
    moment = datetime(year, month, day, hours, minutes, seconds, tzinfo=UTC).timestamp()
    zone = time[3]
    if zone and zone != "Z":
        sign = 1 if zone[0] == "+" else -1
        moment -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return moment / DAY
