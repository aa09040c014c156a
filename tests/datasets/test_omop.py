"""A cohort out of an OMOP database, in DuckDB and in a PostgreSQL of the test's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import omop_database as omop
import pytest
from fast_cases import slow_but
from omop_database import DIABETES, GLUCOSE, HEART_FAILURE, MG_DL, MMOL_L, STROKE

from wardround import datasets
from wardround.datasets.omop.params import holds_password
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.errors import ConfigError, DataError, MissingExtra, WardroundError
from wardround.runs.config import load_config
from wardround.runs.runner import run

pytest.importorskip("duckdb")
pytest.importorskip("sqlalchemy")
PASSWORD = "s3cret-wörd"
SECTION = {
    "cohort": {"conditions": [HEART_FAILURE]},
    "demographics": ["age", "sex", "race"],
    "conditions": {"diabetes": [DIABETES]},
    "measurements": {"glucose": {"concepts": [GLUCOSE]}},
    "outcome": {"name": "died", "death": True, "within_days": 365},
}
SCHEMA = {
    "columns": [
        {"name": "age", "range": [0, 120]},
        {"name": "sex", "type": "category", "levels": ["female", "male"]},
        {"name": "diabetes", "range": [0, 1]},
        {"name": "glucose", "range": [0, 500], "unit": "mg/dl"},
    ],
    "label": {"name": "died", "classes": {"alive": [0], "dead": [1]}, "positive": "dead"},
}


@pytest.fixture(scope="module")
def cdm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return omop.duckdb_file(tmp_path_factory.mktemp("omop") / "cdm.duckdb")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("psycopg")
    if omop.postgres_programs() is None:
        pytest.skip("PostgreSQL (initdb, pg_ctl) is not installed")
    if os.geteuid() == 0 and shutil.which("su") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no su")
    folder = Path(tempfile.mkdtemp(prefix="wardround-pg-"))
    folder.chmod(0o711)  # the user postgres must get through
    try:
        with omop.postgres(folder / "cluster", PASSWORD) as address:
            omop.fill_postgres(address, PASSWORD, omop.rows(), schema="cdm")
            yield f"postgresql://reader@{address}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def source(database: object, **changes: object) -> datasets.DatasetSource:
    return datasets.create("omop", database=str(database), **{**SECTION, **changes})


def columns(database: object, **changes: object) -> dict[str, list[str]]:
    return source(database, **changes).read_columns("")


@pytest.mark.slow
def test_features_are_of_the_lookback_and_the_outcome_is_after_it(cdm):
    table = columns(cdm)
    # Written down by hand from the rules in omop_database.rows, without our SQL.
    persons = [p for p in range(1, 61) if not (p % 10 == 1 and p % 5)]
    assert table["age"] == [str(2020 - 1930 - p) for p in persons]
    assert table["sex"] == ["male" if p % 2 == 0 else "female" for p in persons]
    assert table["race"] == ["8527" if p % 3 else "" for p in persons]
    assert table["diabetes"] == ["1" if p % 4 == 0 else "0" for p in persons]
    assert [float(cell) for cell in table["glucose"]] == [80.0 + p for p in persons]
    assert table["died"] == ["1" if p % 5 == 0 else "0" for p in persons]
    assert list(table) == ["age", "sex", "race", "diabetes", "glucose", "died"]  # no person_id


@pytest.mark.parametrize(
    ("take", "value"),
    slow_but(
        [("last", 80.0), ("mean", 65.0)],
        [("first", 50.0), ("last", 80.0), ("mean", 65.0), ("min", 50.0), ("max", 80.0)],
    ),
)
def test_of_several_values_one_is_taken(cdm, take, value):
    measurement = {"concepts": [GLUCOSE], "take": take}
    table = columns(cdm, measurements={"glucose": measurement})
    assert float(table["glucose"][0]) == value + 2  # of person 2: person 1 is not observed long enough


def test_the_lookback_decides_what_counts(cdm):
    short = columns(cdm, lookback_days=50)
    assert set(short["diabetes"]) == {"0"}
    long = columns(cdm, lookback_days=500, measurements={"glucose": {"concepts": [GLUCOSE], "take": "min"}})
    assert set(long["glucose"]) == {"1.0"}
    none = columns(cdm, lookback_days=0, measurements={"g": [GLUCOSE]}, conditions={})
    assert float(none["g"][0]) == 82.0


def test_concepts_stand_for_those_below_them(cdm):
    outcome = {**SECTION["outcome"], "follow_up": False}
    everybody = columns(cdm, outcome=outcome)
    assert len(everybody["died"]) == 60
    # Every third person is coded with the descendant first: without it, its first day is 40 days later.
    exact = columns(cdm, outcome=outcome, descendants=False, measurements={"g": [GLUCOSE]}, lookback_days=30)
    assert [float(cell) if cell else None for cell in exact["g"]][:3] == [81.0, 82.0, None]


@pytest.mark.slow
def test_who_is_not_observed_long_enough_is_left_out_unless_it_happened(cdm):
    short = {"name": "again", "conditions": [HEART_FAILURE], "within_days": 60}
    table = columns(cdm, outcome=short)
    assert set(table["again"]) == {"1"}  # the second record, 40 days later, is one of person 1's too
    assert len(table["again"]) == 60
    with pytest.raises(DataError, match=r"nobody of the cohort conditions 316139 is left: 60 had it before"):
        columns(cdm, outcome={**short, "incident": True})
    with pytest.raises(DataError, match="60 not observed for 5000 days"):
        columns(cdm, outcome={"name": "s", "conditions": [STROKE], "within_days": 5000})


@pytest.mark.parametrize("cohort", [{"cohort_definition_id": 7}, {"visits": [9201]}])
def test_other_cohorts(cdm, cohort):
    table = columns(cdm, cohort=cohort, outcome={**SECTION["outcome"], "follow_up": False})
    assert len(table["died"]) == 60
    # A visit is three days before: the glucose of the index date is not known yet.
    assert float(table["glucose"][0]) == (51.0 if "visits" in cohort else 81.0)


@pytest.mark.slow
def test_postgresql_gives_the_same_table(cdm, server, monkeypatch):
    monkeypatch.setenv("OMOP_PASSWORD", PASSWORD)
    assert columns(server, cdm_schema="cdm") == columns(cdm)
    assert columns(server, cdm_schema="cdm", cohort={"cohort_definition_id": 7}) == columns(
        cdm, cohort={"cohort_definition_id": 7}
    )


@pytest.mark.slow
def test_a_wrong_or_missing_password_is_said_without_it(server, monkeypatch):
    monkeypatch.setenv("OMOP_PASSWORD", "wrong-one")
    with pytest.raises(DataError, match="OMOP_PASSWORD") as error:
        columns(server, cdm_schema="cdm")
    assert "wrong-one" not in str(error.value)
    assert "reader@127.0.0.1" in str(error.value)
    monkeypatch.delenv("OMOP_PASSWORD")
    with pytest.raises(DataError, match=r"no password supplied.*OMOP_PASSWORD"):
        columns(server, cdm_schema="cdm")


@pytest.mark.slow
def test_postgresql_says_which_schema_lacks_the_table(server, monkeypatch):
    monkeypatch.setenv("OMOP_PASSWORD", PASSWORD)
    with pytest.raises(
        DataError, match=r"no table 'person' in its default schema; say which schema .*cdm_schema"
    ):
        columns(server)


def test_nothing_can_be_written(server, monkeypatch):
    import sqlalchemy as sa

    from wardround.datasets.omop.database import Database

    monkeypatch.setenv("OMOP_PASSWORD", PASSWORD)
    with Database(server, "OMOP_PASSWORD", "cdm").connect() as read:
        assert list(read(sa.text("SELECT current_setting('transaction_read_only')"))) == [("on",)]


def test_bad_databases(tmp_path, cdm):
    with pytest.raises(DataError, match=r"no\.duckdb does not exist"):
        columns(tmp_path / "no.duckdb")
    with pytest.raises(DataError, match=r"'mysql' is not read; .*known: duckdb, postgresql"):
        columns("mysql://a@b/c")
    with pytest.raises(DataError, match="not the address of a database"):
        columns("://")
    with pytest.raises(DataError, match=r"postgresql://a@127\.0\.0\.1:1/c: .*(refused|failed)"):
        columns("postgresql://a@127.0.0.1:1/c")
    (tmp_path / "text.duckdb").write_text("not a database, but long enough to look at " * 40)
    with pytest.raises(DataError, match=r"text\.duckdb: .*not a valid DuckDB"):
        columns(tmp_path / "text.duckdb")
    with pytest.raises(DataError, match="nobody is in the cohort conditions 1, 2"):
        columns(cdm, cohort={"conditions": [1, 2]})


@pytest.mark.slow
def test_missing_tables_and_columns(tmp_path):
    tables = omop.rows()
    without_death = {name: content for name, content in tables.items() if name != "death"}
    database = omop.duckdb_file(tmp_path / "a.duckdb", without_death)
    with pytest.raises(DataError, match="no table 'death' in its default schema"):
        columns(database)
    assert "stroke" in columns(database, outcome={"name": "stroke", "conditions": [STROKE]})  # needs no death
    import duckdb

    with duckdb.connect(str(database)) as connection:
        connection.execute("ALTER TABLE person RENAME year_of_birth TO birth")
    with pytest.raises(DataError, match="table 'person' has no column 'year_of_birth'"):
        columns(database, outcome={"name": "stroke", "conditions": [STROKE]})


@pytest.mark.slow
def test_values_in_several_units_are_refused_until_one_is_chosen(tmp_path):
    tables = omop.rows()
    tables["measurement"] += [(9_999, 2, GLUCOSE, omop.START, 5.5, MMOL_L)]
    database = omop.duckdb_file(tmp_path / "units.duckdb", tables)
    with pytest.raises(DataError, match=r"'glucose' has values in several units: 8753 \(1 values\), 8840 "):
        columns(database)
    chosen = {"glucose": {"concepts": [GLUCOSE], "unit": MG_DL}}
    assert float(columns(database, measurements=chosen)["glucose"][0]) == 82.0


@pytest.mark.parametrize(
    "url", ["postgresql://reader:hunter2@db/cdm", "postgresql://reader@db/cdm?password=hunter2"]
)
def test_a_password_in_the_configuration_is_refused_and_not_repeated(url):
    assert holds_password(url)
    for attempt in (
        lambda: load_config({"dataset": {"name": "omop", "database": url, **SECTION}}),
        lambda: load_config({"dataset": {"name": "omop", "databases": {"a": url}, **SECTION, "nonsense": 1}}),
        lambda: source(url),
    ):
        with pytest.raises(ConfigError) as error:
            attempt()
        assert "hunter2" not in str(error.value)
    with pytest.raises(ConfigError, match="environment variable OMOP_PASSWORD"):
        source(url)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort": {}}, "give one of conditions, visits and cohort_definition_id"),
        ({"outcome": {"name": "x"}}, "give death: true, or conditions"),
        ({"databases": {"a": "b"}}, "give database .one., or databases"),
        ({"client": "person"}, "say client: care_site"),
        ({"conditions": {"age": [1]}}, "two columns are called 'age'"),
        ({"label": "other"}, "is the outcome's name"),
        ({"positive": "1"}, "positive: the OMOP model says that already"),
        ({"demographics": [], "conditions": {}, "measurements": {}}, "no feature"),
    ],
)
def test_mistakes_in_the_section(changes, message):
    with pytest.raises(WardroundError, match=message):
        source("x.duckdb", **changes)


@pytest.mark.slow
def test_a_dataset_by_schema_and_without(cdm):
    own = source(cdm).load(seed=0)
    assert own.feature_names == (
        "age",
        "diabetes",
        "glucose",
        "sex=female",
        "sex=male",
        "race=8527",
        "race=missing",
    )
    assert own.class_names == ("0", "1")
    by_schema = source(cdm, schema=SCHEMA).load(seed=0)
    assert by_schema.class_names == ("alive", "dead")
    assert by_schema.feature_names[:3] == ("age", "diabetes", "glucose")
    np.testing.assert_array_equal(own.train.targets, by_schema.train.targets)
    narrow = {**SCHEMA, "columns": [{"name": "glucose", "range": [0, 100]}]}
    with pytest.raises(SchemaMismatch, match="column 'glucose' holds '102"):
        source(cdm).load_as(Schema.from_dict(narrow), seed=0)


@pytest.mark.slow
def test_a_simulation_by_care_site_and_one_by_database(cdm, tmp_path):
    values = {"rounds": 2, "model": {"name": "logistic"}, "partition": {"name": "natural", "min_size": 5}}
    by_site = load_config(
        {"dataset": {"name": "omop", "database": str(cdm), "client": "care_site", **SECTION}, **values}
    )
    folder = run(by_site, tmp_path / "a")
    assert {record.client for record in folder.clients()} == {"north", "south"}
    databases = {"a": str(cdm), "b": str(cdm)}
    folder = run(
        load_config({"dataset": {"name": "omop", "databases": databases, **SECTION}, **values}),
        tmp_path / "b",
    )
    assert {record.client for record in folder.clients()} == {"a", "b"}


def test_no_password_in_the_records_of_a_run(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OMOP_PASSWORD", PASSWORD)
    section = {"name": "omop", "database": server, "cdm_schema": "cdm", "client": "care_site", **SECTION}
    values = {"rounds": 1, "model": {"name": "logistic"}, "partition": {"name": "natural", "min_size": 5}}
    folder = run(load_config({"dataset": section, **values}), tmp_path)
    for path in folder.path.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path
    assert "reader@127.0.0.1" in (folder.path / "config.yaml").read_text()


def test_without_the_extra_there_is_a_hint(cdm, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'wardround\[omop\]'"):
        columns(cdm)
