"""How fast MIMIC-III's CHARTEVENTS streams, and that memory does not grow with it.

    python benchmarks/bench_data.py            # 5 and 20 million rows, some 3 GB of disk for the while
    python benchmarks/bench_data.py --quick    # a tenth of that

A release of made-up patients is generated under a temporary folder, prepared in a process of its own (whose
peak memory is then its alone), and removed. Both sizes have the same patients; only the events grow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from wardround.datasets.mimic3.variables import CHART, VARIABLES

PATIENTS = 5000

PREPARE = """
import resource, sys, time
from pathlib import Path
from wardround import datasets
from wardround.datasets.prepared_cache import prepare
source = datasets.create("mimic3", memory=sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
prepare(source, Path(sys.argv[1]), root=Path(sys.argv[2]))
seconds = time.perf_counter() - start
start = time.perf_counter()
import os
os.environ["WARDROUND_DATA"] = sys.argv[2]
source.load(0)
loading = time.perf_counter() - start
unit = 1 if sys.platform == "darwin" else 1024
print(seconds, before * unit / 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, loading)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="half a million and two million rows")
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of rows instead of the usual two")
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    given = parser.parse_args()
    sizes = given.rows or ([500_000, 2_000_000] if given.quick else [5_000_000, 20_000_000])
    print(f"CHARTEVENTS of {PATIENTS:,} patients, DuckDB limited to {given.memory}, {os.cpu_count()} cores")
    print(
        f"{'rows':>12} {'file':>9} {'seconds':>8} {'rows/s':>11} {'peak memory':>12} {'at start':>9} {'load':>8}"
    )
    peaks = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="wardround-bench-") as name:
            folder = Path(name)
            generate(folder, rows)
            size = (folder / "CHARTEVENTS.csv").stat().st_size / 1e9
            seconds, before, peak, loading = measure(folder, given.memory)
            peaks.append(peak)
            print(
                f"{rows:>12,} {size:>6.2f} GB {seconds:>8.1f} {rows / seconds:>11,.0f} {peak:>9,.0f} MB "
                f"{before:>6,.0f} MB {loading:>6.2f} s",
                flush=True,
            )
    print(
        f"peak memory, last size against first: {peaks[-1] / peaks[0]:.2f} × for {sizes[-1] / sizes[0]:.0f} × the rows"
    )


def measure(folder: Path, memory: str) -> tuple[float, float, float, float]:
    """Seconds, memory before, peak memory (MB) and seconds to load, in a process of its own."""
    command = [sys.executable, "-c", PREPARE, str(folder), str(folder / "cache"), memory]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds, before, peak, loading = map(float, printed.split())
    return seconds, before, peak, loading


def generate(folder: Path, rows: int) -> None:
    """Tables in the form of the full release (headers in capitals), made by DuckDB from hashes of row numbers."""
    start = time.perf_counter()
    database = duckdb.connect(config={"preserve_insertion_order": False, "memory_limit": "2GB"})
    database.execute("SET enable_progress_bar = false")
    known = [item for variable in VARIABLES for item in variable.items.get(CHART, {})]
    others = range(900_000, 900_000 + 2 * len(known))  # two thirds of the chart is nothing that we look at
    items = ", ".join(map(str, [*known, *others]))

    def table(name: str, query: str) -> None:
        database.execute(f"COPY ({query}) TO '{folder / name}.csv' (FORMAT csv, HEADER)")

    people = f"FROM range({PATIENTS}) r(i)"
    intime = "TIMESTAMP '2150-01-01' + INTERVAL (i) HOUR"
    table(
        "PATIENTS",
        f"SELECT i AS SUBJECT_ID, 'F' AS GENDER, {intime} - INTERVAL (20 + i % 60) YEAR AS DOB {people}",
    )
    table(
        "ADMISSIONS",
        "SELECT i AS SUBJECT_ID, i AS HADM_ID, 'EMERGENCY' AS ADMISSION_TYPE, "
        f"CAST(hash(i) % 9 = 0 AS INTEGER) AS HOSPITAL_EXPIRE_FLAG {people}",
    )
    table(
        "ICUSTAYS",
        "SELECT i AS SUBJECT_ID, i AS HADM_ID, i AS ICUSTAY_ID, 'MICU' AS FIRST_CAREUNIT, "
        f"{intime} AS INTIME, {intime} + INTERVAL 10 DAY AS OUTTIME {people}",
    )
    when = "TIMESTAMP '2150-01-01' + INTERVAL (hash(i) % {n}) HOUR + INTERVAL (hash(i + 1) % 14400) MINUTE"
    when = when.format(n=PATIENTS)
    table(
        "LABEVENTS",
        f"SELECT hash(i) % {PATIENTS} AS SUBJECT_ID, 50912 AS ITEMID, {when} AS CHARTTIME, 1.1 AS VALUE, "
        "1.1 AS VALUENUM, 'mg/dL' AS VALUEUOM FROM range(100000) r(i)",
    )
    table(
        "OUTPUTEVENTS",
        f"SELECT hash(i) % {PATIENTS} AS SUBJECT_ID, NULL AS ICUSTAY_ID, 40055 AS ITEMID, {when} AS CHARTTIME, "
        "60 AS VALUE, 'ml' AS VALUEUOM, NULL AS ISERROR FROM range(100000) r(i)",
    )
    table(
        "CHARTEVENTS",
        f"SELECT i AS ROW_ID, hash(i) % {PATIENTS} AS SUBJECT_ID, hash(i) % {PATIENTS} AS HADM_ID, "
        f"hash(i) % {PATIENTS} AS ICUSTAY_ID, "
        f"([{items}])[1 + CAST(hash(i + 2) % {3 * len(known)} AS BIGINT)] AS ITEMID, "
        f"{when} AS CHARTTIME, {when} AS STORETIME, 14700 AS CGID, 20 + hash(i + 3) % 100 AS VALUE, "
        "20 + hash(i + 3) % 100 AS VALUENUM, 'mmHg' AS VALUEUOM, 0 AS WARNING, "
        f"CAST(hash(i + 4) % 1000 = 0 AS INTEGER) AS ERROR, NULL AS RESULTSTATUS, NULL AS STOPPED "
        f"FROM range({rows}) r(i)",
    )
    database.close()
    print(f"(generated in {time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
