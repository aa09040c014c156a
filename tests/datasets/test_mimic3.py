"""MIMIC-III: every trap planted in small made-up tables, and the real demo against plain Python."""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from fast_cases import slow_but
from raw_files import START, MimicRelease

from wardround import datasets, models
from wardround.datasets import partition
from wardround.datasets.mimic3 import STATISTICS, SeriesInput, extraction
from wardround.datasets.mimic3.variables import CHART, LAB, OUTPUT, VARIABLES
from wardround.datasets.patient_groups import bands
from wardround.datasets.prepared_cache import info, prepare
from wardround.errors import DataError

duckdb = pytest.importorskip("duckdb")


class Release(MimicRelease):
    """A small release that is prepared, and what comes out of it."""

    def features(self) -> tuple[dict[int, dict[str, float]], dict]:
        """Patient → feature → value as stored, NaN where there is none; and the facts."""
        source = datasets.create("mimic3")
        cache = prepare(source, self.write(), force=True)
        stays, table = np.load(cache / "stays.npz"), np.load(cache / "tabular.npy")
        names = [f"{variable.name}_{statistic}" for variable in VARIABLES for statistic in STATISTICS]
        found = {}
        for row, subject in enumerate(stays["subject_id"].tolist()):
            found[subject] = dict(zip(names, table[row].tolist(), strict=True))
            found[subject] |= {"age": float(stays["age"][row]), "died": int(stays["died"][row])}
        return found, info(source)["facts"]


@pytest.fixture
def release(tmp_path) -> Release:
    return Release(tmp_path / "mimic")


def four(values: dict[str, float], name: str) -> list[float]:
    return [values[f"{name}_{statistic}"] for statistic in STATISTICS]


@pytest.mark.parametrize("capitals", [True, False])
@pytest.mark.parametrize("packed", slow_but([True], [True, False]))
def test_header_case_and_packing_do_not_matter(tmp_path, capitals, packed):
    found, facts = Release(tmp_path / "mimic", capitals, packed).features()
    assert facts["stays"] == 40
    assert facts["died_in_hospital"] == 10
    assert four(found[3], "heart_rate") == [80, 80, 80, 80]


def test_both_item_families_are_one_variable(release):
    release.chart(1, 211, 5, 100)  # CareVue
    release.chart(1, 220045, 9, 60)  # MetaVision
    found, facts = release.features()
    assert four(found[1], "heart_rate") == [60, 100, 80, 60]
    assert facts["coverage"]["heart_rate"] == 1


@pytest.mark.slow
def test_temperatures_in_both_scales(release):
    release.chart(1, 678, 1, 98.6, unit="Deg. F")
    release.chart(2, 223761, 1, 104, unit="?F")
    release.chart(3, 223762, 1, 36.5, unit="?C")
    release.chart(4, 223761, 1, 98.6)  # no unit: the item says Fahrenheit
    release.chart(5, 676, 1, 98.6, unit="Deg. F")  # the row's unit is believed before the item's
    found, _ = release.features()
    got = [found[subject]["temperature_last"] for subject in range(1, 6)]
    assert got == pytest.approx([37, 40, 36.5, 37, 37], abs=1e-4)


def test_unit_strings(release):
    release.lab(1, 50931, 1, 100, "mg/dL")
    release.lab(2, 50931, 1, 10, "mmol/L")
    release.lab(3, 50912, 1, 88.4, "µmol/L")
    release.lab(4, 50912, 1, 1.5, "MG/DL")
    release.chart(5, 226531, 1, 220)  # pounds, by the item
    release.chart(6, 226512, 1, 220, unit="lbs")  # pounds, by the row
    release.chart(7, 920, 1, 70, unit="inches")
    release.chart(8, 226730, 1, 170, unit="cm")
    release.chart(9, 190, 1, 0.4, unit="torr")  # what CareVue calls torr is a fraction
    release.chart(10, 223835, 1, 40)
    found, _ = release.features()
    assert found[1]["glucose_last"] == 100
    assert found[2]["glucose_last"] == pytest.approx(180.16, rel=1e-4)
    assert found[3]["creatinine_last"] == pytest.approx(1.0, rel=1e-3)
    assert found[4]["creatinine_last"] == 1.5
    assert found[5]["weight_last"] == found[6]["weight_last"] == pytest.approx(99.79, abs=0.01)
    assert found[7]["height_last"] == pytest.approx(177.8, abs=1e-3)
    assert found[8]["height_last"] == 170
    assert found[9]["fio2_last"] == found[10]["fio2_last"] == pytest.approx(0.4)


def test_values_that_nobody_can_have_are_dropped(release):
    release.chart(1, 220045, 2, 0)
    release.chart(1, 220045, 3, 9999)
    release.chart(2, 220179, 2, 11647)
    release.chart(2, 223761, 2, 37)  # Celsius charted as Fahrenheit is 2.8 °C
    found, facts = release.features()
    assert four(found[1], "heart_rate") == [80, 80, 80, 80]
    assert np.isnan(found[2]["systolic_bp_max"])
    assert np.isnan(found[2]["temperature_max"])
    assert facts["events"]["implausible"] == 4


def test_rows_marked_as_errors_are_dropped(release):
    release.chart(1, 220045, 2, 200, error="1")
    release.chart(1, 220045, 2, 90, error="0")
    release.output(1, 40055, 2, 500, error="1")
    found, facts = release.features()
    assert found[1]["heart_rate_max"] == 90
    assert np.isnan(found[1]["urine_max"])
    assert facts["events"]["marked_as_error"] == 2


@pytest.mark.slow
def test_text_in_value(release):
    release.chart(1, 220045, 2, "unable to obtain", valuenum="")
    release.chart(1, 220045, 3, " 85 ", valuenum="")  # a number in the text column alone
    release.chart(1, 220045, 4, "33%", valuenum="")
    release.chart(1, 220045, 5, "nan", valuenum="nan")
    release.chart(2, 184, 2, "3 To speech", valuenum="")  # the scale counts by its leading number
    release.chart(3, 223900, 2, "Oriented", valuenum=5)
    release.chart(3, 223900, 3, 'said "no, thanks", twice', valuenum="")  # quotes and commas within a cell
    found, facts = release.features()
    assert four(found[1], "heart_rate") == [80, 85, 82.5, 85]
    assert found[2]["gcs_eye_last"] == 3
    assert found[3]["gcs_verbal_last"] == 5
    assert facts["events"]["no_number"] == 4


@pytest.mark.slow
def test_ages_of_three_hundred(release):
    release.patient(900, born=START - timedelta(days=300 * 365.2425))
    release.stay(900, 1000, 0, 72)
    release.patient(901, born=START - timedelta(days=89.5 * 365.2425))
    release.stay(901, 1001, 0, 72)
    found, _ = release.features()
    assert found[900]["age"] == found[901]["age"] == pytest.approx(91.4)
    assert found[1]["age"] == pytest.approx(50 * 365 / 365.2425)


@pytest.mark.slow
def test_only_adults(release):
    release.patient(900, born=datetime(2132, 3, 1))  # 18 on this very day
    release.stay(900, 1000, 0, 72)
    release.patient(901, born=datetime(2132, 3, 2))  # tomorrow
    release.stay(901, 1001, 0, 72)
    found, facts = release.features()
    assert 900 in found
    assert 901 not in found
    assert (facts["first_stays"], facts["adult_first_stays"]) == (42, 41)


@pytest.mark.slow
def test_of_several_stays_only_the_first(release):
    release.stay(1, 500, 100, 72)  # a second stay of the same admission, later
    release.chart(1, 220045, 101, 200, icustay=500)
    release.patient(900)
    release.stay(900, 1001, 50, 72)  # the later one is listed first …
    release.stay(900, 1000, 0, 10)  # … and the first was too short: the patient is out, not moved on
    found, facts = release.features()
    assert found[1]["heart_rate_max"] == 80
    assert 900 not in found
    assert (facts["icu_stays"], facts["patients"], facts["first_stays"]) == (43, 41, 41)


@pytest.mark.slow
def test_a_day_at_least(release):
    release.patient(900)
    release.stay(900, 1000, 0, 24)
    release.patient(901)
    release.stay(901, 1001, 0, 23.9)
    found, _ = release.features()
    assert 900 in found
    assert 901 not in found


def test_death_is_the_admissions_flag(release):
    """Dying after discharge, whatever other columns say of it, is not dying in hospital."""
    found, facts = release.features()
    assert {subject for subject, values in found.items() if values["died"]} == set(range(0, 40, 4))
    assert facts["survived"] == 30


def test_nothing_from_outside_the_window(release):
    """Rows planted just before the stay, on its edge, after 48 hours and after the ICU was left."""
    release.chart(1, 220045, -0.01, 150)
    release.chart(1, 220045, 0, 70)
    release.chart(1, 220045, 47.99, 90)
    release.chart(1, 220045, 48, 151)
    release.chart(1, 220045, 60, 152)
    release.lab(1, 50912, 49, 9.9)
    release.lab(1, 50912, -1, 9.9)
    release.output(1, 40055, 48.5, 900)
    release.patient(900)
    release.stay(900, 1000, 0, 30)
    release.chart(900, 220045, 29, 75, icustay=1000)
    release.chart(900, 220045, 31, 153, icustay=1000)  # within 48 hours, but charted after the ICU
    found, _ = release.features()
    assert four(found[1], "heart_rate") == [70, 90, 80, 90]
    assert np.isnan(found[1]["creatinine_max"])
    assert np.isnan(found[1]["urine_max"])
    assert four(found[900], "heart_rate") == [75, 75, 75, 75]
    series = datasets.create("mimic3", view="series").load(0)
    assert float(torch.nan_to_num(series.train.inputs.stored).max()) < 150


def test_other_peoples_stays_do_not_leak(release):
    release.chart(1, 220045, 5, 150, icustay=555)  # another stay's number
    release.chart(1, 220045, 6, 95, icustay="")  # no number: time and patient decide
    release.chart(2, 220045, 5, 151, icustay=555)
    found, _ = release.features()
    assert found[1]["heart_rate_max"] == 95
    assert found[2]["heart_rate_max"] == 80


@pytest.mark.slow
def test_urine_of_an_hour_adds_up(release):
    release.output(1, 40055, 3.1, 30)
    release.output(1, 226559, 3.9, 40)
    release.output(1, 40055, 5, 10)
    found, _ = release.features()
    assert four(found[1], "urine") == [10, 70, 40, 10]


@pytest.mark.slow
def test_the_coma_scale_is_added_up_where_it_is_charted_in_parts(release):
    for item, value in ((220739, 3), (223900, 4), (223901, 5)):
        release.chart(1, item, 2, value)
    release.chart(2, 220739, 2, 4)  # parts that were not charted at once are not added
    release.chart(2, 223900, 3, 5)
    release.chart(2, 223901, 4, 6)
    release.chart(3, 198, 2, 14)
    found, _ = release.features()
    assert found[1]["gcs_total_last"] == 12
    assert np.isnan(found[2]["gcs_total_last"])
    assert found[3]["gcs_total_last"] == 14


@pytest.mark.slow
def test_the_last_of_two_values_at_once_does_not_depend_on_their_order(release):
    for value in (90, 110, 100):
        release.chart(1, 220045, 2, value)
    release.chart(1, 220045, 2, 60, valuenum=60)
    found, _ = release.features()
    assert found[1]["heart_rate_last"] == 110


@pytest.mark.slow
def test_views(release):
    release.chart(1, 220045, 10.5, 100)
    release.chart(1, 220045, 10.9, 110)
    release.features()
    tabular = datasets.create("mimic3").load(0)
    assert tabular.input_shape == (1 + 4 * len(VARIABLES) + 2 + 3,)
    types = ("ELECTIVE", "EMERGENCY", "URGENT")  # whatever the patients at hand came by
    admitted = tuple(f"admission_type={name}" for name in types)
    assert tabular.feature_names[-5:] == ("gender=F", "gender=M", *admitted)
    assert set(tabular.train.groups) == {"MICU", "SICU"}
    series = datasets.create("mimic3", view="series").load(0)
    for part in (tabular.train, series.train):
        assert part.patient_groups["site"] == part.groups
        assert set(part.patient_groups["sex"]) == {"female", "male"}
    assert series.train.patient_groups == tabular.train.patient_groups
    ages = tabular.raw.table.numeric["age"][tabular.raw.parts[0]]
    assert list(tabular.train.patient_groups["age"]) == bands(ages)
    assert partition.create("natural", min_size=1).assign(tabular.train, tabular.test, 0).clients == (
        "MICU",
        "SICU",
    )
    series = datasets.create("mimic3", view="series").load(0)
    assert series.input_shape == (48, 2 + 2 * len(VARIABLES))
    assert len(series.feature_names) == 2 + 2 * len(VARIABLES)
    assert [len(part) for part in (series.train, series.test)] == [
        len(part) for part in (tabular.train, tabular.test)
    ]
    assert torch.equal(series.train.targets, tabular.train.targets)
    grid = series.train.inputs.stored[1, :, 2]  # patient 1's heart rate by the hour
    assert grid[1] == 80
    assert grid[10] == 105
    assert int(grid.isfinite().sum()) == 2
    for name in ("gru", "cnn1d"):
        model = models.create(name).build(series.input_shape, series.outputs)
        assert model(series.prepare(series.train.inputs[:4])).isfinite().all()


def test_series_are_filled_forward_and_standardised():
    nan = float("nan")
    stored = torch.tensor([[[50.0, 1.0, nan], [50.0, 1.0, 4.0], [50.0, 1.0, nan], [50.0, 1.0, 8.0]]])
    transform = SeriesInput(torch.tensor([50.0, 0.0, 4.0]), torch.tensor([1.0, 1.0, 2.0]))
    got = transform(stored)[0]
    assert got[:, 2].tolist() == [0, 0, 0, 2]  # the mean before the first value, then the latest
    assert got[:, 3].tolist() == [0, 1, 0, 1]
    later = stored.clone()
    later[0, 3] = 99.0
    assert torch.equal(transform(later)[0, :3], got[:3])  # the future does not reach back


def test_series_are_fitted_on_the_stays_given():
    values = np.random.default_rng(0).normal(70, 9, (6, 20))
    values[values > 80] = np.nan
    there = ~np.isnan(values)
    moments = np.stack([there.sum(1), np.nansum(values, 1), np.nansum(values**2, 1)], 1)[:, :, None]
    fitted = SeriesInput.fitted(moments[:4])
    assert float(fitted.mean) == pytest.approx(np.nanmean(values[:4]), rel=1e-5)
    assert float(fitted.deviation) == pytest.approx(np.nanstd(values[:4]), rel=1e-4)


def spoil(path: Path, change) -> None:
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()).decode()).encode()))


@pytest.mark.parametrize(
    ("table", "change", "says"),
    [
        ("CHARTEVENTS", lambda t: t.replace("VALUENUM", "NUMBER"), "CHARTEVENTS.csv.gz has no column 'valuenum'"),
        ("ICUSTAYS", lambda t: t.replace("INTIME", "IN"), "no column 'intime'"),
        ("ADMISSIONS", lambda t: t.replace("EMERGENCY,1", "EMERGENCY,yes"), "hospital_expire_flag.*'yes'"),
        ("PATIENTS", lambda t: t.replace("2100-", "year "), "no readable date of birth"),
        ("ICUSTAYS", lambda t: t.replace("2150-", "year "), "no readable intime"),
        ("ICUSTAYS", lambda t: t.split("\n")[0] + "\n", "cohort is empty"),
        ("CHARTEVENTS", lambda t: t + "1,2,3\n", "CHARTEVENTS.csv.gz cannot be read"),
        ("CHARTEVENTS", lambda t: "", "no usable header"),
    ],
)  # fmt: skip
def test_bad_tables(release, table, change, says, left_behind):
    folder = release.write()
    spoil(folder / f"{table}.csv.gz", change)
    with pytest.raises(DataError, match=says):
        prepare(datasets.create("mimic3"), folder)
    assert left_behind() == []


@pytest.mark.parametrize("table", slow_but(["CHARTEVENTS"], ["CHARTEVENTS", "LABEVENTS", "PATIENTS"]))
def test_a_truncated_gzip(release, table, left_behind):
    for hour in range(40):
        for subject in range(40):
            release.chart(subject, 220045, hour, 60 + hour)
            release.lab(subject, 50912, hour, 1 + hour / 10)
    path = release.write() / f"{table}.csv.gz"
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(DataError, match=rf"{table}|mimic.*GZIP"):
        prepare(datasets.create("mimic3"), path.parent)
    assert left_behind() == []


def test_a_missing_table_and_a_wrong_folder(release, tmp_path, left_behind):
    folder = release.write()
    (folder / "LABEVENTS.csv.gz").unlink()
    with pytest.raises(DataError, match=r"has no LABEVENTS\.csv or LABEVENTS\.csv\.gz.*physionet"):
        prepare(datasets.create("mimic3"), folder)
    with pytest.raises(DataError, match="has no PATIENTS"):
        prepare(datasets.create("mimic3"), tmp_path)
    assert left_behind() == []


@pytest.mark.slow
def test_an_interrupted_preparation_goes_on_with_the_next_table(release, left_behind, monkeypatch):
    """Interrupted before the chart, the two tables before it are not read a second time."""
    folder = release.write()

    def stop(stage: str, done: int, total: int) -> None:
        if stage == OUTPUT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(datasets.create("mimic3"), folder, progress=stop)
    finished = [Path(path).name for path in left_behind() if path.endswith(".parquet")]
    assert finished == ["LABEVENTS.parquet", "OUTPUTEVENTS.parquet"]
    assert not any(path.endswith((".tmp", "spill")) for path in left_behind())
    read: list[str] = []
    run = extraction._run
    monkeypatch.setattr(extraction, "_run", lambda *given: read.append(given[2].name) or run(*given))
    cache = prepare(datasets.create("mimic3"), folder)
    assert read == [folder.name, "CHARTEVENTS.csv.gz"]
    assert sorted(path.name for path in cache.iterdir()) == [
        "manifest.json", "moments.npy", "series.npy", "stays.npz", "tabular.npy",
    ]  # fmt: skip


def test_an_interruption_reaches_a_running_query():
    """Ctrl-C comes while DuckDB is busy in a thread: the query ends, and the connection can be closed."""
    database = duckdb.connect()
    endless = "SELECT count(*) FROM range(1000000000000) r(i) WHERE hash(i) % 7 = 3"

    def press(percent: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extraction._run(database, endless, Path("nothing"), press)
    assert database.execute("SELECT 1").fetchone() == (1,)


# --- the real demo, against plain Python ------------------------------------------------------------------


def rows_of(folder: Path, name: str):
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as text:
        yield from csv.DictReader(text)


def moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S")


def plain_cohort(folder: Path) -> dict[str, tuple[datetime, datetime, str, int]]:
    """Patient → (opens, closes, stay, died), written down from the definition alone."""
    born = {row["subject_id"]: moment(row["dob"]) for row in rows_of(folder, "PATIENTS")}
    died = {row["hadm_id"]: int(row["hospital_expire_flag"]) for row in rows_of(folder, "ADMISSIONS")}
    first: dict[str, dict] = {}
    for row in sorted(rows_of(folder, "ICUSTAYS"), key=lambda row: row["intime"]):
        first.setdefault(row["subject_id"], row)
    cohort = {}
    for subject, row in first.items():
        opens, leaves = moment(row["intime"]), moment(row["outtime"])
        birthday = born[subject]
        adult = (opens.year - birthday.year, opens.month, opens.day) >= (18, birthday.month, birthday.day)
        if adult and leaves - opens >= timedelta(hours=24):
            closes = min(leaves, opens + timedelta(hours=48))
            cohort[subject] = opens, closes, row["icustay_id"], died[row["hadm_id"]]
    return cohort


def plain_values(
    folder: Path, cohort: dict, tables: tuple[str, ...]
) -> dict[str, dict[str, list[tuple[datetime, float]]]]:
    """Variable → patient → (time, value), by a loop over the rows."""
    of_item = {(table, item): v for v in VARIABLES for table, items in v.items.items() for item in items}
    fahrenheit, inches, pounds = {678, 679, 223761}, {920, 1394, 226707}, {226531}
    found: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for table in tables:
        for row in rows_of(folder, table):
            variable = of_item.get((table, int(row["itemid"])))
            stay = cohort.get(row["subject_id"])
            if variable is None or stay is None or not row["charttime"]:
                continue
            time, item = moment(row["charttime"]), int(row["itemid"])
            if not stay[0] <= time < stay[1] or row.get("icustay_id", "") not in ("", stay[2]):
                continue
            if "1" in (row.get("error"), row.get("iserror")):
                continue
            try:
                value = float(row.get("valuenum") or row["value"].strip())
            except ValueError:
                leading = re.match(r"\s*(\d+)", row["value"])
                if not variable.leading_number or not leading:
                    continue
                value = float(leading.group(1))
            if item in fahrenheit:
                value = (value - 32) / 1.8
            elif item in inches:
                value *= 2.54
            elif item in pounds:
                value *= 0.45359237
            elif variable.name == "fio2" and value > 1:
                value /= 100
            if variable.low <= value <= variable.high:
                found[variable.name][row["subject_id"]].append((time, value))
    parts = [found[f"gcs_{part}"] for part in ("eye", "verbal", "motor")]
    for subject in parts[0]:
        by_time = [dict(sorted(part[subject])) for part in parts]
        for time in set.intersection(*map(set, by_time)):
            found["gcs_total"][subject].append((time, sum(part[time] for part in by_time)))
    return found


@pytest.mark.slow
def test_the_demos_cohort_labels_and_coverage(real):
    """What can be derived a second time in a moment: all but the chart."""
    folder = real("mimic3-demo")
    source = datasets.create("mimic3")
    prepare(source, folder)
    facts = info(source)["facts"]
    cohort = plain_cohort(folder)
    assert facts["stays"] == len(cohort) == 81
    assert facts["died_in_hospital"] == sum(stay[3] for stay in cohort.values()) == 25
    values = plain_values(folder, cohort, (LAB, OUTPUT))
    uncharted = [variable.name for variable in VARIABLES if CHART not in variable.items]
    assert {name: facts["coverage"][name] for name in uncharted} == {
        name: round(len(values[name]) / len(cohort), 4) for name in uncharted
    }


@pytest.mark.slow
def test_the_demo_against_plain_python(real):
    """Cohort, labels, coverage of every variable and the four statistics, each derived a second time."""
    folder = real("mimic3-demo")
    source = datasets.create("mimic3")
    cache = prepare(source, folder)
    facts = info(source)["facts"]
    cohort = plain_cohort(folder)
    values = plain_values(folder, cohort, (CHART, LAB, OUTPUT))
    assert facts["stays"] == len(cohort) == 81
    assert facts["died_in_hospital"] == sum(stay[3] for stay in cohort.values()) == 25
    assert facts["survived"] == 56
    assert facts["icu_stays"] == sum(1 for _ in rows_of(folder, "ICUSTAYS"))
    assert facts["coverage"] == {
        variable.name: round(len(values[variable.name]) / len(cohort), 4) for variable in VARIABLES
    }
    stays, table = np.load(cache / "stays.npz"), np.load(cache / "tabular.npy")
    table = table.reshape(len(cohort), len(VARIABLES), 4)
    assert stays["died"].tolist() == [cohort[str(subject)][3] for subject in stays["subject_id"]]
    for number, variable in enumerate(VARIABLES):
        for row, subject in enumerate(stays["subject_id"]):
            listed = values[variable.name].get(str(subject))
            if listed is None:
                assert np.isnan(table[row, number]).all()
                continue
            if variable.amount:
                opens, hours = cohort[str(subject)][0], defaultdict(float)
                for time, value in listed:
                    hours[(time - opens) // timedelta(hours=1)] += value
                listed = sorted(hours.items())
            numbers = [value for _, value in listed]
            expected = [min(numbers), max(numbers), sum(numbers) / len(numbers), max(listed)[1]]
            assert table[row, number] == pytest.approx(expected, rel=1e-4, abs=1e-4), (variable.name, subject)


LABELS = {
    "heart_rate": "heart rate", "systolic_bp": "systolic", "diastolic_bp": "diastolic", "mean_bp": "mean",
    "respiratory_rate": r"resp.*rate", "temperature": "temp", "spo2": "spo2|o2 saturation", "fio2": "fio2|inspired o2",
    "gcs_eye": "eye", "gcs_verbal": "verbal", "gcs_motor": "motor", "gcs_total": "gcs total", "weight": "weight|wt",
    "height": "height|ht", "glucose": "glucose", "ph": "^ph$", "pco2": "^pco2$", "po2": "^po2$",
    "urine": "urine|stent|foley|void|condom|suprapubic|nephrostomy|straight cath|ileoconduit",
    "base_excess": "base excess", "white_cells": "wbc|white blood", "urea_nitrogen": "urea nitrogen", "inr": "inr",
    "ptt": "^ptt$", "alt": r"\(alt\)", "ast": r"\(ast\)", "anion_gap": "anion gap", "platelets": "platelet",
    "alkaline_phosphatase": "alkaline phosphatase", "troponin_t": "troponin t",
}  # fmt: skip


def test_items_are_what_the_dictionary_calls_so(real):
    """Every item id, looked up in the release's own dictionary."""
    folder = real("mimic3-demo")
    items = {row["itemid"]: row["label"] for row in rows_of(folder, "D_ITEMS")}
    blood = {
        row["itemid"]: row["label"]
        for row in rows_of(folder, "D_LABITEMS")
        if row["fluid"].lower() == "blood"
    }
    for variable in VARIABLES:
        for table, listed in variable.items.items():
            for item in listed:
                label = (blood if table == LAB else items)[str(item)].lower()
                assert re.search(LABELS.get(variable.name, variable.name), label), (
                    variable.name,
                    item,
                    label,
                )


@pytest.mark.slow
def test_the_demo_trains(real):
    source = datasets.create("mimic3")
    prepare(source, real("mimic3-demo"))
    for view, name in (("tabular", "mlp"), ("series", "gru")):
        data = datasets.create("mimic3", view=view).load(0)
        model = models.create(name).build(data.input_shape, data.outputs)
        logits = model(data.prepare(data.train.inputs[:]))
        assert logits.shape == (len(data.train), 1)
        assert logits.isfinite().all()
