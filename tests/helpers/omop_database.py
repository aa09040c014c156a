"""A small OMOP CDM database, made by hand, in DuckDB or in a PostgreSQL cluster of the test's own."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_port

DDL = {
    "person": "person_id INTEGER, gender_concept_id INTEGER, year_of_birth INTEGER, race_concept_id INTEGER, "
    "ethnicity_concept_id INTEGER, care_site_id INTEGER",
    "condition_occurrence": "condition_occurrence_id INTEGER, person_id INTEGER, condition_concept_id INTEGER, "
    "condition_start_date DATE",
    "visit_occurrence": "visit_occurrence_id INTEGER, person_id INTEGER, visit_concept_id INTEGER, "
    "visit_start_date DATE",
    "measurement": "measurement_id INTEGER, person_id INTEGER, measurement_concept_id INTEGER, "
    "measurement_date DATE, value_as_number NUMERIC(12, 3), unit_concept_id INTEGER",
    "death": "person_id INTEGER, death_date DATE",
    "observation_period": "person_id INTEGER, observation_period_start_date DATE, observation_period_end_date DATE",
    "cohort": "cohort_definition_id INTEGER, subject_id INTEGER, cohort_start_date DATE",
    "concept_ancestor": "ancestor_concept_id INTEGER, descendant_concept_id INTEGER",
    "care_site": "care_site_id INTEGER, care_site_name VARCHAR(80)",
}
HEART_FAILURE, ITS_CHILD, DIABETES, STROKE, GLUCOSE, MG_DL, MMOL_L = (
    316139,
    4229440,
    201820,
    443454,
    3004501,
    8840,
    8753,
)
START = dt.date(2020, 6, 1)
Tables = dict[str, list[tuple[object, ...]]]


def rows(persons: int = 60) -> Tables:
    """Persons 1 to n with heart failure, coded by a descendant for every third; who is what follows from the number.

    Person p: born 1930 + p, male where p is even, diabetes where p % 4 == 0, glucose 80 + p, dead within 100 days where
    p % 5 == 0; observed for two years but for p % 10 == 1, who are observed for 30 days. Person 0 has no heart failure.
    """
    tables: Tables = {name: [] for name in DDL}
    tables["concept_ancestor"] = [(HEART_FAILURE, HEART_FAILURE), (HEART_FAILURE, ITS_CHILD)]
    tables["care_site"] = [(1, "north"), (2, "south")]
    tables["person"].append((0, 8507, 1950, 0, 0, 1))
    for p in range(1, persons + 1):
        index = START + dt.timedelta(days=p)
        tables["person"].append(
            (p, 8507 if p % 2 == 0 else 8532, 1930 + p, 8527 if p % 3 else 0, 0, 1 + p % 2)
        )
        concept = ITS_CHILD if p % 3 == 0 else HEART_FAILURE
        tables["condition_occurrence"].append((3 * p, p, concept, index))
        tables["condition_occurrence"].append((3 * p + 1, p, HEART_FAILURE, index + dt.timedelta(days=40)))
        if p % 4 == 0:
            tables["condition_occurrence"].append((3 * p + 2, p, DIABETES, index - dt.timedelta(days=100)))
        tables["visit_occurrence"].append((p, p, 9201, index - dt.timedelta(days=3)))
        for days, value in ((-400, 1.0), (-20, 50.0 + p), (0, 80.0 + p), (1, 999.0)):
            day = index + dt.timedelta(days=days)
            tables["measurement"].append((10 * p + days, p, GLUCOSE, day, value, MG_DL))
        if p % 5 == 0:
            tables["death"].append((p, index + dt.timedelta(days=100)))
        observed = 30 if p % 10 == 1 else 730
        tables["observation_period"].append(
            (p, index - dt.timedelta(days=500), index + dt.timedelta(days=observed))
        )
        tables["cohort"].append((7, p, index))
    return tables


def statements(tables: Tables, schema: str | None = None) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    """SQL with the rows it is executed for (none: once)."""
    prefix = f"{schema}." if schema else ""
    if schema:
        yield f"CREATE SCHEMA {schema}", []
    for name, content in tables.items():
        yield f"CREATE TABLE {prefix}{name} ({DDL[name]})", []
        if content:
            yield f"INSERT INTO {prefix}{name} VALUES ({', '.join('?' * len(content[0]))})", content


def fill_postgres(address: str, password: str, tables: Tables, schema: str) -> None:
    """Create the tables and insert the rows."""
    import psycopg

    host, port = address.split(":")
    with psycopg.connect(
        host=host, port=port, user="reader", password=password, dbname="postgres"
    ) as connection:
        for statement, content in statements(tables, schema):
            with connection.cursor() as cursor:
                if content:
                    cursor.executemany(statement.replace("?", "%s"), content)
                else:
                    cursor.execute(statement)


def duckdb_file(path: Path, tables: Tables | None = None, schema: str | None = None) -> Path:
    """A DuckDB file with these tables (or `rows()`)."""
    import duckdb

    with duckdb.connect(str(path)) as connection:
        for statement, content in statements(rows() if tables is None else tables, schema):
            if content:
                connection.executemany(statement, content)
            else:
                connection.execute(statement)
    return path


def postgres_programs() -> Path | None:
    """The folder with initdb and postgres; None where PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = (
        [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def postgres(folder: Path, password: str) -> Iterator[str]:
    """A PostgreSQL cluster of one's own with a password for its user `reader`; yields `host:port`.

    PostgreSQL does not run as root: there the cluster belongs to the user `postgres`.
    """
    programs = postgres_programs()
    assert programs is not None
    as_root = os.geteuid() == 0
    folder.mkdir(mode=0o700)
    (folder / "password").write_text(password)
    if as_root:
        shutil.chown(folder, "postgres")
        shutil.chown(folder / "password", "postgres")

    def run(*command: object) -> None:
        words = [str(word) for word in command]
        words = (
            ["su", "postgres", "-s", "/bin/sh", "-c", subprocess.list2cmdline(words)] if as_root else words
        )
        subprocess.run(words, check=True, cwd="/", capture_output=True, timeout=120)

    port = free_port()
    data = folder / "data"
    run(
        programs / "initdb", "-D", data, "-U", "reader", "--auth=scram-sha-256",
        f"--pwfile={folder / 'password'}", "--no-sync", "--encoding=UTF8",
    )  # fmt: skip
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    run(programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
