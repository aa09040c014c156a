"""A cohort out of an OMOP CDM database, as a table with one row per person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wardround.datasets.base import Task, register
from wardround.datasets.omop.params import OmopParams
from wardround.datasets.table_source import Signature, TableSource
from wardround.errors import DataError, did_you_mean

__all__ = ["OmopCohort"]

CATEGORIES = ("sex", "race", "ethnicity")


@register("omop")
class OmopCohort(TableSource):
    """A cohort of an OMOP CDM database (5.3 or 5.4; PostgreSQL or DuckDB): one row per person.

    `cohort` says who is in it and gives each person an index date. `demographics`, `conditions` and `measurements` are
    features of the `lookback_days` up to that date; `outcome` is the label, after it. Concepts stand for all below
    them. Nothing but these columns is read out, and no identifier of a person is among them.

    `client: care_site` makes the care sites the clients of the `natural` partition; `databases` has one database per
    hospital instead.
    """

    task = Task.BINARY
    summary = "a cohort of an OMOP CDM database: cohort, features, outcome; PostgreSQL or DuckDB"
    extra = "omop"
    licence = "yours"
    origin = "your OMOP CDM database"
    layout = "tables of the OMOP CDM 5.3 or 5.4, in the database that the option `database` names"

    class Params(OmopParams):
        pass

    params: Params

    @property
    def urls(self) -> dict[str, str]:
        """Hospital → address of its database."""
        return self.params.databases or {"": str(self.params.database)}

    @property
    def places(self) -> dict[str, str]:
        from wardround.datasets.omop.database import place_of

        return {hospital: place_of(url) for hospital, url in self.urls.items()}

    @property
    def is_per_hospital(self) -> bool:
        return bool(self.params.databases)

    @property
    def label(self) -> str:
        return self.params.outcome.name

    @property
    def categorical(self) -> tuple[str, ...]:
        return tuple(name for name in self.params.demographics if name in CATEGORIES)

    def read_columns(self, hospital: str, required: Sequence[str] = ()) -> dict[str, list[str]]:
        from wardround.datasets.omop.database import Database
        from wardround.datasets.omop.extraction import extract

        p = self.params
        database = Database(self.urls[hospital], p.password_env, p.cdm_schema, p.results_schema)
        columns = extract(database, p).columns
        for name in required:
            if name not in columns:
                raise DataError(f"{database.place}: no column '{name}'; {did_you_mean(name, columns)}")
        return columns

    def signature(self) -> Signature:
        """Of a DuckDB file its time and size; of a server nothing, which is asked again after a refusal anyway."""
        files = [
            Path(place.removeprefix("duckdb:///")) for place in self.places.values() if "duckdb:///" in place
        ]
        stats = [(str(file), file.stat()) for file in files if file.is_file()]
        return tuple((name, stat.st_mtime, stat.st_size) for name, stat in stats)
