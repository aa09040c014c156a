"""From the raw tables to features, as a stream: memory does not grow with the number of chart events.

DuckDB reads each event table once, keeps what belongs to the cohort, the window and a known variable, and
writes it to a small file; features are made from these files. The large table comes last, so that what is wrong
with the others shows early.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.datasets.mimic3.features import ERROR, IMPLAUSIBLE, KEPT, NO_NUMBER, write_features
from wardround.datasets.mimic3.tables import RawTable, locate
from wardround.datasets.mimic3.variables import CHART, LAB, OUTPUT, VARIABLES
from wardround.datasets.prepared_cache import Workspace
from wardround.errors import DataError, require

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["extract"]

OVER_89 = 91.4
"""The median age of those over 89, whose dates of birth are shifted by some 300 years in the release."""


def extract(folder: Path, work: Workspace, hours: int, memory: str, origin: str) -> dict[str, Any]:
    """Write `stays.npz`, `tabular.npy`, `series.npy` and `moments.npy`; return what is worth telling."""
    tables = locate(folder, origin)
    with _database(work, memory) as database:
        facts = _cohort(database, tables, hours, folder)
        _dictionary(database)
        for name in (LAB, OUTPUT, CHART):
            _filter(database, work, tables[name], name)
        facts |= write_features(database, work, hours, facts["stays"])
    for name in (LAB, OUTPUT, CHART):
        (work / f"{name}.parquet").unlink()
    return facts


@contextmanager
def _database(work: Workspace, memory: str) -> Iterator[DuckDBPyConnection]:
    """DuckDB that keeps to its memory, spills beside the work, and need not keep rows in order."""
    duckdb = require("duckdb", "mimic3")
    spill = work / "spill"
    shutil.rmtree(spill, ignore_errors=True)  # a killed process could not clean up
    database = duckdb.connect(
        config={
            "memory_limit": memory,
            "threads": work.workers,
            "temp_directory": str(spill),
            "preserve_insertion_order": False,
        }
    )
    # Joins stay as they are written, the large table on the left: guessing that little of it will match, the
    # optimiser would turn them round and gather the matches in memory before the first is passed on.
    database.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    # Progress is followed but not printed: what is printed is the caller's to say.
    database.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    try:
        yield database
    finally:
        database.close()
        shutil.rmtree(spill, ignore_errors=True)


def _run(
    database: DuckDBPyConnection, sql: str, source: Path, tick: Callable[[int], None] = lambda percent: None
) -> DuckDBPyConnection:
    """Execute, telling how far it is; an interruption reaches DuckDB, an error of the data names its file."""
    duckdb = require("duckdb", "mimic3")
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(database.execute(sql))
        except Exception as error:
            outcome.append(error)
        finally:
            done.set()

    # An event, not Thread.join: interrupted within a join, Python takes the thread for ended.
    done = threading.Event()
    threading.Thread(target=work, daemon=True).start()
    try:
        while not done.wait(0.2):
            tick(max(0, min(99, int(database.query_progress()))))
    except BaseException:
        database.interrupt()
        done.wait()
        raise
    if isinstance(outcome[0], duckdb.OutOfMemoryException):
        raise DataError(f"{source}: not enough memory; raise the option memory ({_first_line(outcome[0])})")
    if isinstance(outcome[0], duckdb.Error):
        raise DataError(f"{source} cannot be read: {_first_line(outcome[0])}")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    result: DuckDBPyConnection = outcome[0]
    return result


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _cohort(
    database: DuckDBPyConnection, tables: dict[str, RawTable], hours: int, folder: Path
) -> dict[str, Any]:
    """The table `cohort`: one stay a patient, numbered from 0, with its window of time."""
    _run(
        database,
        f"""
        CREATE TABLE stay AS
        SELECT s.*, p.gender, p.dob, a.admission_type, a.flag,
               row_number() OVER (PARTITION BY s.subject_id ORDER BY s.intime, s.icustay_id) AS nth
        FROM (SELECT TRY_CAST(subject_id AS BIGINT) AS subject_id, TRY_CAST(hadm_id AS BIGINT) AS hadm_id,
                     TRY_CAST(icustay_id AS BIGINT) AS icustay_id, coalesce(first_careunit, 'unknown') AS care_unit,
                     TRY_CAST(intime AS TIMESTAMP) AS intime, TRY_CAST(outtime AS TIMESTAMP) AS outtime
              FROM {tables["ICUSTAYS"].sql}) s
        LEFT JOIN (SELECT TRY_CAST(subject_id AS BIGINT) AS subject_id, coalesce(upper(gender), '') AS gender,
                          TRY_CAST(dob AS TIMESTAMP) AS dob
                   FROM {tables["PATIENTS"].sql}) p USING (subject_id)
        LEFT JOIN (SELECT TRY_CAST(hadm_id AS BIGINT) AS hadm_id, coalesce(admission_type, '') AS admission_type,
                          hospital_expire_flag AS flag
                   FROM {tables["ADMISSIONS"].sql}) a USING (hadm_id)
        """,
        folder,
    )
    _check_stays(database, tables)
    database.execute(
        f"""
        CREATE TABLE cohort AS
        SELECT row_number() OVER (ORDER BY subject_id) - 1 AS stay, subject_id, icustay_id, care_unit, gender,
               admission_type, CAST(CAST(flag AS DOUBLE) AS BIGINT) AS died,
               CASE WHEN age > 89 THEN {OVER_89} ELSE age END AS age,
               intime AS opens, least(outtime, intime + INTERVAL {hours} HOUR) AS closes
        FROM (SELECT *, (epoch(intime) - epoch(dob)) / (365.2425 * 86400) AS age FROM stay)
        WHERE nth = 1 AND intime >= dob + INTERVAL 18 YEAR AND outtime >= intime + INTERVAL 24 HOUR
        """
    )
    (counts,) = database.execute(
        """
        SELECT count(*), count(DISTINCT subject_id), count(*) FILTER (nth = 1),
               count(*) FILTER (nth = 1 AND intime >= dob + INTERVAL 18 YEAR)
        FROM stay
        """
    ).fetchall()
    ((stays, died),) = database.execute("SELECT count(*), coalesce(sum(died), 0) FROM cohort").fetchall()
    if not stays:
        raise DataError(
            f"{folder}: none of {counts[0]} ICU stays is an adult's first of 24 hours or more; the cohort is empty"
        )
    return {
        "icu_stays": counts[0],
        "patients": counts[1],
        "first_stays": counts[2],
        "adult_first_stays": counts[3],
        "stays": stays,
        "died_in_hospital": int(died),
        "survived": stays - int(died),
    }


def _check_stays(database: DuckDBPyConnection, tables: dict[str, RawTable]) -> None:
    """Stop at what would silently shrink the cohort."""
    orphan = database.execute("SELECT icustay_id, subject_id FROM stay WHERE dob IS NULL").fetchone()
    if orphan:
        raise DataError(
            f"{tables['PATIENTS'].path}: no readable date of birth for patient {orphan[1]} of ICU stay {orphan[0]}"
        )
    untimed = database.execute("SELECT icustay_id FROM stay WHERE intime IS NULL").fetchone()
    if untimed:
        raise DataError(f"{tables['ICUSTAYS'].path}: no readable intime for ICU stay {untimed[0]}")
    unlabelled = database.execute(
        "SELECT hadm_id, flag FROM stay WHERE coalesce(TRY_CAST(flag AS DOUBLE), -1) NOT IN (0, 1)"
    ).fetchone()
    if unlabelled:
        raise DataError(
            f"{tables['ADMISSIONS'].path}: hospital_expire_flag of admission {unlabelled[0]} is {unlabelled[1]!r}; "
            "expected 0 or 1"
        )


def _dictionary(database: DuckDBPyConnection) -> None:
    """The tables `variable`, `item` and `unit`: what `variables.py` says, for joins."""
    database.execute(
        "CREATE TABLE variable (variable UTINYINT, low DOUBLE, high DOUBLE, percent_above DOUBLE, textual BOOLEAN)"
    )
    database.execute(
        "CREATE TABLE item (source VARCHAR, itemid BIGINT, variable UTINYINT, factor DOUBLE, base DOUBLE)"
    )
    database.execute("CREATE TABLE unit (variable UTINYINT, spelling VARCHAR, factor DOUBLE, base DOUBLE)")
    variables = [(i, v.low, v.high, v.percent_above, v.leading_number) for i, v in enumerate(VARIABLES)]
    items = [
        (source, item, i, *v.factor(unit or v.unit))
        for i, v in enumerate(VARIABLES)
        for source, listed in v.items.items()
        for item, unit in listed.items()
    ]
    units = [
        (i, word, *numbers) for i, v in enumerate(VARIABLES) for word, numbers in v.known_units().items()
    ]
    database.executemany("INSERT INTO variable VALUES (?, ?, ?, ?, ?)", variables)
    database.executemany("INSERT INTO item VALUES (?, ?, ?, ?, ?)", items)
    database.executemany("INSERT INTO unit VALUES (?, ?, ?, ?)", units)


def _filter(database: DuckDBPyConnection, work: Workspace, table: RawTable, name: str) -> None:
    """One pass over an event table: `<name>.parquet` with stay, variable, seconds, value and what became of it."""
    file = f"{name}.parquet"
    if work.has(file):
        work.progress(name, 100, 100)
        return
    marked = {CHART: "error", OUTPUT: "iserror"}.get(name)
    error = f"coalesce(TRY_CAST(e.{marked} AS DOUBLE), 0) = 1" if marked else "false"
    own_stay = "AND coalesce(TRY_CAST(e.icustay_id AS BIGINT), c.icustay_id) = c.icustay_id" if marked else ""
    charted = "TRY_CAST(trim(e.value) AS DOUBLE)"
    if "valuenum" in table.columns:
        charted = f"coalesce(TRY_CAST(e.valuenum AS DOUBLE), {charted})"
    begins_with = "TRY_CAST(regexp_extract(e.value, '^\\s*(\\d+(\\.\\d+)?)', 1) AS DOUBLE)"
    with work.writing(file) as target:
        _run(
            database,
            f"""
            COPY (
                SELECT stay, variable, seconds,
                       CASE WHEN failed THEN {ERROR} WHEN value IS NULL OR NOT isfinite(value) THEN {NO_NUMBER}
                            WHEN value NOT BETWEEN low AND high THEN {IMPLAUSIBLE} ELSE {KEPT} END AS fate,
                       value
                FROM (
                    SELECT stay, variable, seconds, failed, low, high,
                           CASE WHEN percent_above IS NOT NULL AND value > percent_above THEN value / 100
                                ELSE value END AS value
                    FROM (
                        SELECT c.stay, v.variable, v.low, v.high, v.percent_above, {error} AS failed,
                               CAST(epoch(TRY_CAST(e.charttime AS TIMESTAMP)) - epoch(c.opens) AS INTEGER) AS seconds,
                               (CASE WHEN v.textual THEN coalesce({charted}, {begins_with}) ELSE {charted} END)
                               * coalesce(u.factor, i.factor) + coalesce(u.base, i.base) AS value
                        FROM {table.sql} e
                        JOIN (SELECT * FROM item WHERE source = '{name}') i ON i.itemid = TRY_CAST(e.itemid AS BIGINT)
                        JOIN variable v ON v.variable = i.variable
                        JOIN cohort c ON c.subject_id = TRY_CAST(e.subject_id AS BIGINT)
                             AND TRY_CAST(e.charttime AS TIMESTAMP) >= c.opens
                             AND TRY_CAST(e.charttime AS TIMESTAMP) < c.closes {own_stay}
                        LEFT JOIN unit u ON u.variable = v.variable AND u.spelling = regexp_replace(
                             translate(lower(e.valueuom), 'µμ', 'uu'), '[^a-z0-9/%]', '', 'g')
                    )
                )
            ) TO '{str(target).replace("'", "''")}' (FORMAT parquet)
            """,
            table.path,
            lambda percent: work.progress(name, percent, 100),
        )
    work.progress(name, 100, 100)
