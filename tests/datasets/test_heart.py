"""Four hospitals: missing values as each writes them, a natural split, broken files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wardround import datasets
from wardround.datasets import partition
from wardround.datasets.heart import HOSPITALS
from wardround.datasets.prepared_cache import info, prepare
from wardround.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "heart"
    place.mkdir()
    for number, name in enumerate(HOSPITALS):
        cholesterol = (lambda i: 0) if name == "switzerland" else (lambda i: 200 + i)
        rows = [
            f"{40 + i}.0,1,{1 + i % 4},120,{cholesterol(i)},?,0,150,0,.5,?,?,{3 + i % 2},{i % 3}"
            for i in range(20 + number)
        ]
        (place / f"processed.{name}.data").write_text("\n".join(rows) + "\n")
    return place


def test_each_hospital_is_a_client(folder):
    source = datasets.create("heart")
    prepare(source, folder)
    data = source.load(0)
    dealt = partition.create("natural").assign(data.train, data.test, 0)
    assert dealt.clients == tuple(sorted(HOSPITALS))
    assert info(source)["facts"]["va"] == {"rows": 23, "disease": sum(i % 3 > 0 for i in range(23))}
    assert sum(len(part) for part in (data.train, data.validation, data.test)) == 20 + 21 + 22 + 23


def test_patients_keep_sex_age_and_hospital(folder):
    source = datasets.create("heart")
    prepare(source, folder)
    test = source.load(0).test
    assert test.patient_groups["site"] == test.groups
    assert set(test.patient_groups["sex"]) == {"male"}
    assert set(test.patient_groups["age"]) <= {"40-59", "60-79"}


def test_zero_cholesterol_is_no_measurement(folder):
    prepare(datasets.create("heart"), folder)
    data = datasets.create("heart").load(0)
    column = data.feature_names.index("chol")
    switzerland = [i for i, name in enumerate(data.train.groups) if name == "switzerland"]
    values = data.train.inputs[switzerland, column]
    # All of them the training median, which is not far from the mean: a true zero would be many deviations off.
    assert values.std() == pytest.approx(0, abs=1e-6)
    assert abs(float(values[0])) < 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1,2,3", "line 1: 3 values, expected 14"),
        ("a,1,1,120,200,0,0,150,0,.5,1,0,3,1", "column 'age' holds 'a'"),
        ("60,1,1,120,200,0,0,150,0,.5,1,0,3,?", "no diagnosis"),
        ("", "is empty"),
    ],
)
def test_broken_lines(folder, line, says, left_behind):
    (folder / "processed.va.data").write_text(line + "\n")
    with pytest.raises(DataError, match=says):
        prepare(datasets.create("heart"), folder)
    assert left_behind() == []


def test_a_missing_hospital_is_named(folder, left_behind):
    (folder / "processed.hungarian.data").unlink()
    with pytest.raises(
        DataError, match=r"processed\.hungarian\.data does not exist; expected.*archive\.ics\.uci\.edu"
    ):
        prepare(datasets.create("heart"), folder)
    assert left_behind() == []


def test_the_real_four_hospitals(real):
    source = datasets.create("heart")
    prepare(source, real("heart-uci"))
    facts = info(source)["facts"]
    for name in HOSPITALS:
        lines = (real("heart-uci") / f"processed.{name}.data").read_text().split()
        assert facts[name] == {
            "rows": len(lines),
            "disease": sum(line.split(",")[-1] != "0" for line in lines),
        }
    assert [facts[name]["rows"] for name in HOSPITALS] == [303, 294, 123, 200]
    data = source.load(0)
    assert bool(np.isfinite(data.train.inputs.numpy()).all())
