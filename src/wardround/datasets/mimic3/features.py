"""From the filtered events to the two views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wardround.datasets.mimic3.variables import CHART, LAB, OUTPUT, VARIABLES
from wardround.datasets.prepared_cache import Workspace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["ERROR", "FATES", "IMPLAUSIBLE", "KEPT", "NO_NUMBER", "write_features"]

KEPT, ERROR, NO_NUMBER, IMPLAUSIBLE = range(4)
"""What became of an event of the cohort, the window and a known variable."""
FATES = ("kept", "marked_as_error", "no_number", "implausible")
STAYS_AT_ONCE = 4000
"""Stays whose hourly values are in memory at a time."""


def write_features(database: DuckDBPyConnection, work: Workspace, hours: int, stays: int) -> dict[str, Any]:
    """`stays.npz`, `tabular.npy`, `series.npy` and `moments.npy`, and coverage of every variable."""
    _events(database, work)
    cohort = database.execute("SELECT * FROM cohort ORDER BY stay").fetchnumpy()
    about: dict[str, Any] = {name: np.asarray(cohort[name]) for name in ("subject_id", "age", "died")}
    words: dict[str, Any] = {
        name: np.asarray(cohort[name], dtype=str) for name in ("gender", "admission_type", "care_unit")
    }
    with work.writing("stays.npz") as path, path.open("wb") as file:
        np.savez(file, **about, **words)
    seen = _write_tabular(database, work, stays)
    static = np.stack([about["age"], words["gender"] == "M"], 1).astype(np.float32)
    _write_series(database, work, static, hours)
    fates = dict(database.execute("SELECT fate, count(*) FROM raw GROUP BY fate").fetchall())
    return {
        "events": {name: fates.get(fate, 0) for fate, name in enumerate(FATES)},
        "coverage": {
            variable.name: round(float(share), 4) for variable, share in zip(VARIABLES, seen, strict=True)
        },
    }


def _events(database: DuckDBPyConnection, work: Workspace) -> None:
    """The views `raw` (all that was filtered) and `event`: values to be used, of an amount one an hour."""
    files = ", ".join(
        "'" + str(work / f"{name}.parquet").replace("'", "''") + "'" for name in (CHART, LAB, OUTPUT)
    )
    index = {variable.name: i for i, variable in enumerate(VARIABLES)}
    parts = ", ".join(str(index[name]) for name in ("gcs_eye", "gcs_verbal", "gcs_motor"))
    amounts = ", ".join(str(i) for i, variable in enumerate(VARIABLES) if variable.amount)
    database.execute(f"CREATE VIEW raw AS SELECT * FROM read_parquet([{files}])")
    database.execute(
        f"""
        CREATE VIEW event AS
        SELECT stay, variable, seconds, value FROM raw WHERE fate = {KEPT} AND variable NOT IN ({amounts})
        UNION ALL  -- a volume is what came in an hour, at the hour's last charting
        SELECT stay, variable, max(seconds), sum(value) FROM raw
        WHERE fate = {KEPT} AND variable IN ({amounts}) GROUP BY stay, variable, seconds // 3600
        UNION ALL  -- the Glasgow coma scale where its three parts were charted at once
        SELECT stay, {index["gcs_total"]}, seconds, sum(value) FROM (
            SELECT stay, variable, seconds, max(value) AS value FROM raw
            WHERE fate = {KEPT} AND variable IN ({parts}) GROUP BY stay, variable, seconds
        ) GROUP BY stay, seconds HAVING count(*) = 3
        """
    )


def _write_tabular(database: DuckDBPyConnection, work: Workspace, stays: int) -> np.ndarray:
    """n × (variables · 4), NaN where never measured; returns the share of stays that have each variable."""
    # Two values of one moment: the larger is the last, so that the order of reading decides nothing.
    rows = database.execute(
        """
        SELECT stay, variable, min(value) AS lowest, max(value) AS highest, avg(value) AS mean,
               arg_max(value, {'s': seconds, 'v': value}) AS last
        FROM event GROUP BY stay, variable
        """
    ).fetchnumpy()
    table = np.full((stays, len(VARIABLES), 4), np.nan, dtype=np.float32)
    place = np.asarray(rows["stay"]), np.asarray(rows["variable"]).astype(int)
    for column, name in enumerate(("lowest", "highest", "mean", "last")):
        table[(*place, column)] = np.asarray(rows[name])
    with work.writing("tabular.npy") as path, path.open("wb") as file:
        np.save(file, table.reshape(stays, -1))
    seen: np.ndarray = (~np.isnan(table[:, :, 0])).mean(0)
    return seen


def _write_series(database: DuckDBPyConnection, work: Workspace, static: np.ndarray, hours: int) -> None:
    """n × hours × (static + variables) with NaN for hours without a value, and each stay's moments."""
    stays, fixed = static.shape
    moments = np.zeros((stays, 3, fixed + len(VARIABLES)))
    with work.writing("series.npy") as path:
        grid = np.lib.format.open_memmap(
            path, mode="w+", dtype=np.float32, shape=(stays, hours, fixed + len(VARIABLES))
        )
        for first, piece in _hourly(database, stays, hours):
            last = first + len(piece)
            piece = np.concatenate([np.repeat(static[first:last, None], hours, 1), piece], 2)
            grid[first:last] = piece
            there = ~np.isnan(piece)
            known = np.where(there, piece, 0).astype(float)
            moments[first:last] = np.stack([there.sum(1), known.sum(1), (known**2).sum(1)], 1)
            work.progress("series", last, stays)
        grid.flush()
        del grid
    with work.writing("moments.npy") as path, path.open("wb") as file:
        np.save(file, moments)


def _hourly(database: DuckDBPyConnection, stays: int, hours: int) -> Iterator[tuple[int, np.ndarray]]:
    """(first stay, stays × hours × variables) piece by piece: the mean of each hour."""
    for first in range(0, stays, STAYS_AT_ONCE):
        last = min(first + STAYS_AT_ONCE, stays)
        cells = database.execute(
            f"""
            SELECT stay, variable, seconds // 3600 AS hour, avg(value) AS mean FROM event
            WHERE stay >= {first} AND stay < {last} GROUP BY stay, variable, seconds // 3600
            """
        ).fetchnumpy()
        piece = np.full((last - first, hours, len(VARIABLES)), np.nan, dtype=np.float32)
        rows, hour = np.asarray(cells["stay"]) - first, np.asarray(cells["hour"])
        piece[rows, hour, np.asarray(cells["variable"]).astype(int)] = np.asarray(cells["mean"])
        yield first, piece
