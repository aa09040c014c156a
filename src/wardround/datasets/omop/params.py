"""What a user says of an OMOP database: whose rows, which features, which outcome. Light to import."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from wardround.datasets.table_source import TableParams
from wardround.errors import ConfigError
from wardround.registry import Parameters

__all__ = ["CARE_SITE", "Cohort", "Measurement", "OmopParams", "Outcome"]

CARE_SITE = "care_site"
"""The column to share a database out by: `client: care_site`."""
Concepts = tuple[int, ...]


class Cohort(Parameters):
    """Who is in it. A person's index date is the first day on which one of these was recorded."""

    conditions: Concepts = ()
    """Condition concepts."""
    visits: Concepts = ()
    """Visit concepts: 9201 is an inpatient visit, 9203 one to the emergency room."""
    cohort_definition_id: int | None = None
    """Rows of the table `cohort`, as ATLAS writes them; the index date is `cohort_start_date`."""

    @model_validator(mode="after")
    def _one_kind(self) -> Cohort:
        if [bool(self.conditions), bool(self.visits), self.cohort_definition_id is not None].count(True) != 1:
            raise ValueError("give one of conditions, visits and cohort_definition_id")
        return self


class Outcome(Parameters):
    """What is predicted: 1 where it happened after the index date and at most `within_days` later."""

    name: str = "outcome"
    """The column's name: the label."""
    death: bool = False
    conditions: Concepts = ()
    """One of these conditions begins."""
    within_days: int = Field(365, ge=1)
    incident: bool = False
    """Leave persons out who had it on the index date or before."""
    follow_up: bool = True
    """Leave persons out without the outcome whose observation period ends before it could have been seen."""

    @model_validator(mode="after")
    def _one_kind(self) -> Outcome:
        if self.death == bool(self.conditions):
            raise ValueError("give death: true, or conditions")
        return self


class Measurement(Parameters):
    """A number out of the table `measurement`."""

    concepts: Concepts = Field(min_length=1)
    take: Literal["last", "first", "mean", "min", "max"] = "last"
    """Of several values of a person before the index date."""
    unit: int | None = None
    """The unit's concept; values in other units are not used. Required where a database has several."""


class OmopParams(TableParams):
    """Keys of `dataset: {name: omop, …}`."""

    database: str | None = None
    """postgresql://user@host/name, or duckdb:///file. Without a password: see `password_env`."""
    databases: dict[str, str] = Field(default_factory=dict)
    """Hospital → its database, instead of `database`, for simulations."""
    password_env: str = "OMOP_PASSWORD"
    """The environment variable with the password. PostgreSQL's own ~/.pgpass works too."""
    cdm_schema: str | None = None
    """The database schema with the CDM's tables; None: the connection's own (public in PostgreSQL, main in DuckDB)."""
    results_schema: str | None = None
    """The database schema with the table `cohort`; None: as `cdm_schema`."""
    cohort: Cohort
    outcome: Outcome
    demographics: tuple[Literal["age", "sex", "race", "ethnicity"], ...] = ("age", "sex")
    """Age in years on the index date; sex male, female or missing; race and ethnicity as concept ids."""
    conditions: dict[str, Concepts] = Field(default_factory=dict)
    """Column → condition concepts: 1 where one of them was recorded in the lookback, else 0."""
    measurements: dict[str, Measurement] = Field(default_factory=dict)
    """Column → what it holds."""
    lookback_days: int = Field(365, ge=0)
    """Features are of this many days up to the index date, the date itself included."""
    descendants: bool = True
    """Does a concept stand for all below it (by the table `concept_ancestor`)?"""

    @field_validator("measurements", mode="before")
    @classmethod
    def _short_form(cls, values: Any) -> Any:
        """`glucose: [3004501]` is short for `glucose: {concepts: [3004501]}`."""
        if not isinstance(values, dict):
            return values
        return {
            key: {"concepts": own} if isinstance(own, list | tuple) else own for key, own in values.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _no_password(cls, values: Any) -> Any:
        """Refuse a password before anything could repeat it: configurations are written into records."""
        if isinstance(values, dict):
            several = values.get("databases")
            given = [values.get("database"), *(several.values() if isinstance(several, dict) else ())]
            for url in given:
                if isinstance(url, str) and holds_password(url):
                    name = values.get("password_env", "OMOP_PASSWORD")
                    raise ConfigError(
                        "dataset 'omop': database: holds a password, and configurations are written into records; "
                        f"take it out and put it into the environment variable {name} (password_env) or ~/.pgpass"
                    )
        return values

    @model_validator(mode="after")
    def _columns_are_told_apart(self) -> OmopParams:
        if (self.database is None) == (not self.databases):
            raise ValueError("give database (one), or databases (hospital: its database)")
        if self.client not in (None, CARE_SITE):
            raise ValueError(f"client: a person's hospital is its care site: say client: {CARE_SITE}")
        if self.databases and self.client is not None:
            raise ValueError("with databases each one is a client: leave `client` out")
        for key in ("categorical", "drop", "patient", "positive"):
            if getattr(self, key):
                raise ValueError(f"{key}: the OMOP model says that already: leave it out")
        if self.label not in (None, self.outcome.name):
            raise ValueError(f"label: is the outcome's name, {self.outcome.name!r}: leave it out")
        names = [*self.demographics, *self.conditions, *self.measurements, self.outcome.name, CARE_SITE]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two columns are called '{twice}'")
        if len(names) == 2:
            raise ValueError("no feature: give demographics, conditions or measurements")
        return self


def holds_password(url: str) -> bool:
    """Is there a password in a database's address?

    >>> [holds_password(url) for url in ("postgresql://a:b@h/d", "postgresql://a@h/d?password=b", "postgresql://a@h/d")]
    [True, True, False]
    """
    rest = url.partition("://")[2]
    user, at, _ = rest.partition("?")[0].rpartition("@")
    return bool(at and ":" in user) or "password=" in rest.partition("?")[2]
