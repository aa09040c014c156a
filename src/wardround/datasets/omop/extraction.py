"""One row per person out of an OMOP database: index date, features up to it, outcome after it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wardround.datasets.omop.database import Database, Reader
from wardround.datasets.omop.params import CARE_SITE, Cohort, Measurement, OmopParams
from wardround.errors import DataError

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

__all__ = ["TABLES", "extract"]

TABLES = {
    "person": ("person_id", "gender_concept_id", "year_of_birth", "race_concept_id", "ethnicity_concept_id"),
    "condition_occurrence": ("person_id", "condition_concept_id", "condition_start_date"),
    "visit_occurrence": ("person_id", "visit_concept_id", "visit_start_date"),
    "measurement": (
        "person_id", "measurement_concept_id", "measurement_date", "value_as_number", "unit_concept_id",
    ),
    "death": ("person_id", "death_date"),
    "observation_period": ("person_id", "observation_period_start_date", "observation_period_end_date"),
    "cohort": ("cohort_definition_id", "subject_id", "cohort_start_date"),
    "concept_ancestor": ("ancestor_concept_id", "descendant_concept_id"),
    "care_site": ("care_site_id", "care_site_name"),
}  # fmt: skip
"""Table of the CDM (5.3 and 5.4) → the columns that are read."""
SEXES = {8507: "male", 8532: "female"}
DEMOGRAPHIC_COLUMNS = {"race": "race_concept_id", "ethnicity": "ethnicity_concept_id"}
Dates = dict[int, list[dt.date]]


@dataclass
class Extract:
    """The cohort as columns of words, and how many persons were left out of it."""

    columns: dict[str, list[str]]
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason → persons."""


def extract(database: Database, params: OmopParams) -> Extract:
    """Read a cohort.

    Raises:
        DataError: The database cannot be read, lacks a table, or has nobody in the cohort.
    """
    with database.connect() as read:
        needed = {table: TABLES[table] for table in _needed(params)}
        if params.client == CARE_SITE:
            needed["person"] = (*needed["person"], "care_site_id")
        database.check(read, needed)
        return _Extraction(database, read, params).extract()


def _needed(params: OmopParams) -> list[str]:
    """The tables that this cohort is made of."""
    cohort, outcome = params.cohort, params.outcome
    uses = {
        "person": True,
        "condition_occurrence": bool(cohort.conditions or outcome.conditions or params.conditions),
        "visit_occurrence": bool(cohort.visits),
        "cohort": cohort.cohort_definition_id is not None,
        "measurement": bool(params.measurements),
        "death": outcome.death,
        "observation_period": outcome.follow_up,
        "concept_ancestor": params.descendants and _names_concepts(params),
        "care_site": params.client == CARE_SITE,
    }
    return [table for table, used in uses.items() if used]


def _names_concepts(params: OmopParams) -> bool:
    """Is there a concept that could have others below it? Visits count as they are written."""
    return bool(
        params.cohort.conditions or params.outcome.conditions or params.conditions or params.measurements
    )


class _Extraction:
    """One cohort at work."""

    def __init__(self, database: Database, read: Reader, params: OmopParams) -> None:
        self.database, self.read, self.params = database, read, params
        self.select = database.sqlalchemy.select

    def extract(self) -> Extract:
        """All columns, in the order in which the configuration names them."""
        p = self.params
        index = self._index_dates(p.cohort)
        if not index:
            raise DataError(f"{self.database.place}: nobody is in the cohort {_describe(p.cohort)}")
        persons = {row[0]: row for row in self._persons() if row[0] in index}
        if not persons:
            raise DataError(
                f"{self.database.place}: the cohort's {len(index)} persons are not in the table 'person'"
            )
        outcome, left_out = self._outcomes({person: index[person] for person in persons})
        people = sorted(outcome)
        if not people:
            reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
            raise DataError(
                f"{self.database.place}: nobody of the cohort {_describe(p.cohort)} is left: {reasons}"
            )
        columns: dict[str, list[str]] = {}
        for demographic in p.demographics:
            columns[demographic] = [
                _demographic(demographic, persons[person], index[person]) for person in people
            ]
        for name, concepts in p.conditions.items():
            having = self._persons_with(concepts, index)
            columns[name] = ["1" if person in having else "0" for person in people]
        for name, measurement in p.measurements.items():
            values = self._values(name, measurement, index)
            columns[name] = [repr(values[person]) if person in values else "" for person in people]
        if p.client == CARE_SITE:
            sites = self._care_sites()
            columns[CARE_SITE] = [sites.get(person, "unknown") for person in people]
        columns[p.outcome.name] = ["1" if outcome[person] else "0" for person in people]
        return Extract(columns, left_out)

    def _index_dates(self, cohort: Cohort) -> dict[int, dt.date]:
        """Person → first day on which the cohort's condition, visit or definition was recorded."""
        if cohort.cohort_definition_id is not None:
            table = self.database.table("cohort", *TABLES["cohort"])
            chosen = table.c.cohort_definition_id == cohort.cohort_definition_id
            rows = self.read(self.select(table.c.subject_id, table.c.cohort_start_date).where(chosen))
        elif cohort.visits:
            table = self.database.table("visit_occurrence", *TABLES["visit_occurrence"])
            chosen = table.c.visit_concept_id.in_(cohort.visits)
            rows = self.read(self.select(table.c.person_id, table.c.visit_start_date).where(chosen))
        else:
            rows = self._condition_rows(cohort.conditions)
        first: dict[int, dt.date] = {}
        for person, day in rows:
            if day is not None and (person not in first or _date(day) < first[person]):
                first[person] = _date(day)
        return first

    def _persons(self) -> Iterator[tuple[Any, ...]]:
        table = self.database.table("person", *TABLES["person"])
        return self.read(self.select(*table.c))

    def _outcomes(self, index: Mapping[int, dt.date]) -> tuple[dict[int, bool], dict[str, int]]:
        """Person → did it happen in time; and how many persons were left out, by reason."""
        outcome = self.params.outcome
        if outcome.death:
            table = self.database.table("death", *TABLES["death"])
            days = _by_person(self.read(self.select(table.c.person_id, table.c.death_date)), index)
        else:
            days = _by_person(self._condition_rows(outcome.conditions), index)
        observed = self._observed_until(index) if outcome.follow_up else {}
        result: dict[int, bool] = {}
        left_out: dict[str, int] = {}
        for person, start in index.items():
            delays = [(day - start).days for day in days.get(person, ())]
            happened = any(0 < delay <= outcome.within_days for delay in delays)
            reason = None
            if outcome.incident and any(delay <= 0 for delay in delays):
                reason = "had it before"
            elif outcome.follow_up and not happened:
                end = observed.get(person)
                died_in_time = outcome.death and bool(delays)
                if not died_in_time and (end is None or (end - start).days < outcome.within_days):
                    reason = f"not observed for {outcome.within_days} days"
            if reason is None:
                result[person] = happened
            else:
                left_out[reason] = left_out.get(reason, 0) + 1
        return result, left_out

    def _observed_until(self, index: Mapping[int, dt.date]) -> dict[int, dt.date]:
        """Person → end of the observation period that the index date lies in."""
        table = self.database.table("observation_period", *TABLES["observation_period"])
        ends: dict[int, dt.date] = {}
        for person, begin, end in self.read(self.select(*table.c)):
            start = index.get(person)
            if start is None or begin is None or end is None or not _date(begin) <= start <= _date(end):
                continue
            ends[person] = max(_date(end), ends.get(person, _date(end)))
        return ends

    def _persons_with(self, concepts: Iterable[int], index: Mapping[int, dt.date]) -> set[int]:
        """Persons with one of these conditions in the lookback."""
        return {
            person
            for person, day in self._condition_rows(concepts)
            if person in index and day is not None and self._is_in_lookback(_date(day), index[person])
        }

    def _values(
        self, column: str, measurement: Measurement, index: Mapping[int, dt.date]
    ) -> dict[int, float]:
        """Person → the value of a measurement in the lookback."""
        table = self.database.table("measurement", *TABLES["measurement"])
        statement = self.select(
            table.c.person_id, table.c.measurement_date, table.c.value_as_number, table.c.unit_concept_id
        ).where(
            self._is_one_of(table.c.measurement_concept_id, measurement.concepts),
            table.c.value_as_number.is_not(None),
        )
        series: dict[int, list[tuple[dt.date, float]]] = {}
        units: dict[int, int] = {}
        for person, day, value, unit in self.read(statement):
            if person not in index or day is None or not self._is_in_lookback(_date(day), index[person]):
                continue
            if measurement.unit not in (None, unit):
                continue
            units[unit or 0] = units.get(unit or 0, 0) + 1
            series.setdefault(person, []).append((_date(day), float(value)))
        if len(units) > 1:
            listed = ", ".join(f"{unit} ({count} values)" for unit, count in sorted(units.items()))
            raise DataError(
                f"{self.database.place}: measurement '{column}' has values in several units: {listed}; "
                f"say which one: measurements.{column}.unit"
            )
        take = _TAKE[measurement.take]
        # Sorted by day and value: two values of one day have no order of their own in the database.
        return {person: take([value for _, value in sorted(own)]) for person, own in series.items()}

    def _care_sites(self) -> dict[int, str]:
        """Person → name of its care site, or its number where it has no name."""
        person = self.database.table("person", "person_id", "care_site_id")
        site = self.database.table("care_site", *TABLES["care_site"])
        statement = self.select(person.c.person_id, site.c.care_site_id, site.c.care_site_name).join_from(
            person, site, person.c.care_site_id == site.c.care_site_id
        )
        return {row[0]: str(row[2] or row[1]) for row in self.read(statement)}

    def _condition_rows(self, concepts: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        table = self.database.table("condition_occurrence", *TABLES["condition_occurrence"])
        chosen = self._is_one_of(table.c.condition_concept_id, concepts)
        return self.read(self.select(table.c.person_id, table.c.condition_start_date).where(chosen))

    def _is_one_of(self, column: ColumnElement[Any], concepts: Iterable[int]) -> ColumnElement[bool]:
        """Is a column one of these concepts, or (with `descendants`) one below them?"""
        own = column.in_(list(concepts))
        if not self.params.descendants:
            return own
        ancestor = self.database.table("concept_ancestor", *TABLES["concept_ancestor"])
        below = self.select(ancestor.c.descendant_concept_id).where(
            ancestor.c.ancestor_concept_id.in_(list(concepts))
        )
        return own | column.in_(below)

    def _is_in_lookback(self, day: dt.date, index: dt.date) -> bool:
        return 0 <= (index - day).days <= self.params.lookback_days


_TAKE: dict[str, Callable[[list[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
}


def _demographic(name: str, person: tuple[Any, ...], index: dt.date) -> str:
    row = dict(zip(TABLES["person"], person, strict=True))
    if name == "age":
        return "" if row["year_of_birth"] is None else str(index.year - int(row["year_of_birth"]))
    if name == "sex":
        return SEXES.get(row["gender_concept_id"], "")
    concept = row[DEMOGRAPHIC_COLUMNS[name]]
    return str(concept) if concept else ""  # 0 is OMOP's "no matching concept"


def _by_person(rows: Iterable[tuple[Any, ...]], persons: Mapping[int, dt.date]) -> Dates:
    days: Dates = {}
    for person, day in rows:
        if person in persons and day is not None:
            days.setdefault(person, []).append(_date(day))
    return days


def _date(value: dt.date) -> dt.date:
    return value.date() if isinstance(value, dt.datetime) else value


def _describe(cohort: Cohort) -> str:
    if cohort.cohort_definition_id is not None:
        return f"cohort_definition_id {cohort.cohort_definition_id}"
    kind, concepts = ("conditions", cohort.conditions) if cohort.conditions else ("visits", cohort.visits)
    return f"{kind} {', '.join(map(str, concepts))}"
