"""The connection to an OMOP database, with errors that say what is wrong, and never with a password.

Statements are SQLAlchemy's. PostgreSQL gets them through SQLAlchemy; DuckDB, which speaks PostgreSQL's dialect, gets
their text: its SQLAlchemy driver leaves connections behind, which DuckDB reports when the program ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.errors import DataError, did_you_mean, require

if TYPE_CHECKING:
    from sqlalchemy import Select, TableClause
    from sqlalchemy.engine import URL

__all__ = ["Database", "Reader", "place_of"]

Reader = Callable[["Select[Any]"], Iterator[tuple[Any, ...]]]
"""Runs a statement and gives its rows."""
DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "duckdb": "duckdb"}
CONNECT_SECONDS = 15
FETCH_ROWS = 10_000


def place_of(url: str) -> str:
    """A database's address for messages: what stands in the configuration holds no password.

    >>> place_of("postgresql://reader@db.example.org/cdm?sslmode=require"), place_of("stays.duckdb")
    ('postgresql://reader@db.example.org/cdm', 'duckdb:///stays.duckdb')
    """
    return (url if "://" in url else f"duckdb:///{url}").partition("?")[0]


class Database:
    """One OMOP CDM database, open for reading.

    Args:
        url: `postgresql://user@host/name`, `duckdb:///file`, or the path of a DuckDB file.
        password_env: The environment variable with the password, where one is needed.
        schema: The database schema of the CDM's tables; None: the connection's own.
        results_schema: The one of the table `cohort`; None: as `schema`.
    """

    def __init__(
        self, url: str, password_env: str, schema: str | None = None, results_schema: str | None = None
    ) -> None:
        self.sqlalchemy = require("sqlalchemy", "omop")
        self.place, self.schema, self.results_schema = place_of(url), schema, results_schema or schema
        self._password = os.environ.get(password_env) or None
        self._password_env = password_env
        self._url = self._checked(url)

    def _checked(self, url: str) -> URL:
        """The address with its driver and password."""
        errors = self.sqlalchemy.exc
        try:
            parsed: URL = self.sqlalchemy.make_url(url if "://" in url else f"duckdb:///{url}")
        except errors.ArgumentError:
            raise DataError(
                f"{self.place}: not the address of a database; for example postgresql://reader@db.example.org/cdm "
                "or duckdb:///cdm.duckdb"
            ) from None
        kind = parsed.drivername.partition("+")[0]
        if kind not in DRIVERS:
            raise DataError(
                f"{self.place}: '{kind}' is not read; {did_you_mean(kind, ('postgresql', 'duckdb'))}"
            )
        if kind == "duckdb":
            require("duckdb", "omop")
            file = Path(parsed.database or "")
            if not file.is_file():
                raise DataError(f"{self.place}: {file} does not exist")
            return parsed
        require("psycopg", "omop")
        return parsed.set(drivername=DRIVERS[kind], password=self._password)

    @contextmanager
    def connect(self) -> Iterator[Reader]:
        """A connection that cannot write; what goes wrong on it is a `DataError` without the password."""
        with self._duckdb() if self._url.drivername == "duckdb" else self._postgresql() as read:
            yield read

    @contextmanager
    def _postgresql(self) -> Iterator[Reader]:
        sa = self.sqlalchemy
        engine = sa.create_engine(self._url, connect_args={"connect_timeout": CONNECT_SECONDS})
        try:
            with engine.connect() as connection:
                connection.execute(sa.text("SET TRANSACTION READ ONLY"))
                options = connection.execution_options(yield_per=FETCH_ROWS)
                yield lambda statement: (tuple(row) for row in options.execute(statement))
        except sa.exc.SQLAlchemyError as error:
            raise DataError(f"{self.place}: {self._explained(error)}") from None
        finally:
            engine.dispose()

    @contextmanager
    def _duckdb(self) -> Iterator[Reader]:
        duckdb = require("duckdb", "omop")
        try:
            with duckdb.connect(self._url.database, read_only=True) as connection:
                yield lambda statement: iter(connection.execute(_text(statement)).fetchall())
        except duckdb.Error as error:
            raise DataError(f"{self.place}: {self._explained(error)}") from None

    def _explained(self, error: Exception) -> str:
        """One line without the password and without the statement."""
        cause = getattr(error, "orig", None) or error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        text = lines[0] if lines else type(cause).__name__
        if self._password:
            text = text.replace(self._password, "***")
        if "password" in text.lower():
            text += (
                f"; put the password into the environment variable {self._password_env}, or into ~/.pgpass"
            )
        return text

    def check(self, read: Reader, needed: Mapping[str, Sequence[str]]) -> None:
        """Raise a `DataError` that names the table or column of `needed` (table → columns) that is not there."""
        for table, columns in needed.items():
            schema = self._schema_of(table)
            there = self._tables(read, schema)
            where = f"schema '{schema}'" if schema else "its default schema"
            if table not in there:
                hint = did_you_mean(table, there) if len(there) <= 60 else f"{len(there)} tables are there"
                advice = "" if schema else "; say which schema holds the CDM: cdm_schema"
                raise DataError(f"{self.place}: no table '{table}' in {where}{advice}; {hint}")
            for column in columns:
                if column not in there[table]:
                    raise DataError(
                        f"{self.place}: table '{table}' has no column '{column}', which OMOP CDM 5 has; "
                        f"{did_you_mean(column, there[table])}"
                    )

    def _tables(self, read: Reader, schema: str | None) -> dict[str, set[str]]:
        """Table → columns of a schema, in lower case. DuckDB and PostgreSQL answer this question alike."""
        sa = self.sqlalchemy
        columns = sa.table(
            "columns",
            *map(sa.column, ("table_schema", "table_name", "column_name")),
            schema="information_schema",
        )
        wanted = sa.func.current_schema() if schema is None else schema
        tables: dict[str, set[str]] = {}
        for table, column in read(
            sa.select(columns.c.table_name, columns.c.column_name).where(columns.c.table_schema == wanted)
        ):
            tables.setdefault(str(table).lower(), set()).add(str(column).lower())
        return tables

    def _schema_of(self, table: str) -> str | None:
        return self.results_schema if table == "cohort" else self.schema

    def table(self, name: str, *columns: str) -> TableClause:
        """A table to select from."""
        sa = self.sqlalchemy
        clause: TableClause = sa.table(name, *map(sa.column, columns), schema=self._schema_of(name))
        return clause


def _text(statement: Select[Any]) -> str:
    """A statement as DuckDB reads it. What it holds are numbers and names from a checked configuration."""
    dialect = require("sqlalchemy.dialects.postgresql", "omop").dialect()
    return str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
