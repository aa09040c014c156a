"""Which column of a table is what: as the options of the dataset say, or its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wardround.datasets.csv_table import CsvTable
from wardround.datasets.schema import Schema

__all__ = ["TableRoles"]


@dataclass(frozen=True)
class TableRoles:
    """The columns with a role of their own; all others are features that are numbers."""

    label: str | None
    client: str | None
    patient: str | None
    categorical: tuple[str, ...]
    drop: tuple[str, ...]
    schema: Schema | None = None
    time: str | None = None
    """Of a survival task: the column of times."""

    @classmethod
    def of(cls, source: CsvTable, columns: Sequence[str]) -> TableRoles:
        """The roles in a table with these columns."""
        p = source.params
        if p.schema is None:
            return cls(p.label, p.client, p.patient, p.categorical, p.drop, time=p.time)
        schema = Schema.from_dict(p.schema) if isinstance(p.schema, Mapping) else Schema.load(p.schema)
        known = {column.name for column in schema.columns}
        client, patient = p.client or schema.client, p.patient or schema.patient
        used = {schema.label.name, schema.label.time, client, patient, *known}
        return cls(
            schema.label.name,
            client if client in columns else None,
            patient if patient in columns else None,
            tuple(
                column.name
                for column in schema.columns
                if column.type == "category" and column.name in columns
            ),
            tuple(name for name in columns if name not in used),
            schema,
            schema.label.time,
        )
