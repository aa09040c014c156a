"""Patient groups: how columns become groups, and that every loader that has them keeps them with its rows."""

import math

import numpy as np
import pytest

from wardround import datasets
from wardround.datasets.patient_groups import (
    AGE_BANDS,
    bands,
    groups_of_column,
    groups_of_rows,
    person_groups,
)
from wardround.errors import ConfigError, DataError

CSV = "age,sex,score,race,site,died\n" + "\n".join(
    f"{20 + i},{'F' if i % 3 else 'm'},{i % 7},{'a' if i % 2 else ''},{'n' if i < 50 else 's'},{i % 2}"
    for i in range(100)
)


def test_a_band_begins_where_it_says():
    ages = [39.99, 40, 59, 60, 79.5, 80, 120, math.nan]
    assert bands(ages) == ["<40", "40-59", "40-59", "60-79", "60-79", "80+", "80+", "unknown"]
    assert AGE_BANDS == (40, 60, 80)
    assert bands([24.9, 25, 30.5], [25, 30.5]) == ["<25", "25 to 30.5", "30.5+"]


def test_only_what_is_there_becomes_a_group():
    assert person_groups(site=["a", ""]) == {"site": ["a", "unknown"]}
    assert person_groups(["M", "f", "?"], [3.0, 50.0, math.nan]) == {
        "sex": ["male", "female", "unknown"], "age": ["<40", "40-59", "unknown"],
    }  # fmt: skip


def test_a_column_of_many_numbers_needs_to_be_told_where_groups_begin():
    cells = [str(i) for i in range(50)]
    numbers = lambda: np.arange(50.0)  # noqa: E731
    assert set(groups_of_column("Age_years", cells, numbers)) == {"<40", "40-59"}
    assert groups_of_column("bmi", cells, numbers, (25,)).count("25+") == 25
    with pytest.raises(ConfigError, match=r"'bmi' has 50 different values.*groups: \{bmi: \[25, 30\]\}"):
        groups_of_column("bmi", cells, numbers)


def write(path, text=CSV):
    path.write_text(text)
    return path


@pytest.mark.parametrize("groups", [["sex", "age"], {"sex": None, "age": [40, 60, 80]}])
def test_csv_keeps_the_columns_that_groups_names(tmp_path, groups):
    options = {
        "file": write(tmp_path / "t.csv"),
        "label": "died",
        "categorical": ["sex"],
        "drop": ["race", "site"],
    }
    data = datasets.create("csv", **options, groups=groups).load(0)
    ages = data.raw.table.numeric["age"]
    for split, rows in zip((data.train, data.validation, data.test), data.raw.parts, strict=True):
        assert list(split.patient_groups) == ["sex", "age"]
        assert list(split.patient_groups["age"]) == bands(ages[rows])
        words = data.raw.table.categorical["sex"][rows]
        assert [group[0] for group in split.patient_groups["sex"]] == [word.lower() for word in words]


def test_a_group_column_may_be_dropped_as_a_feature_and_may_have_gaps(tmp_path):
    data = datasets.create(
        "csv",
        file=write(tmp_path / "t.csv"),
        label="died",
        drop=["race", "sex"],
        client="site",
        groups=["race", "site"],
    ).load(0)
    assert "race" not in data.feature_names
    assert set(data.test.patient_groups["race"]) == {"a", "unknown"}
    assert tuple(data.test.patient_groups["site"]) == tuple(data.test.groups)


def test_csv_says_which_column_of_groups_is_missing(tmp_path):
    options = {"file": write(tmp_path / "t.csv"), "label": "died", "drop": ["race", "site", "sex"]}
    with pytest.raises(DataError, match="no column 'gender', which `groups` names"):
        datasets.create("csv", **options, groups=["gender"]).load(0)


def test_hospitals_with_files_of_their_own_keep_their_groups(tmp_path):
    other = CSV.replace("sex", "gender").replace("site", "place")
    files = {"a": write(tmp_path / "a.csv"), "b": write(tmp_path / "b.csv", other)}
    drop = ["race", "site", "sex", "gender", "place"]
    data = datasets.create("csv", files=files, label="died", drop=drop, groups=["sex"]).load(0)
    of_b = [
        group
        for group, at in zip(data.train.patient_groups["sex"], data.train.groups, strict=True)
        if at == "b"
    ]
    assert set(of_b) == {"unknown"}, "a hospital without the column"
    assert set(data.train.patient_groups["sex"]) == {"female", "male", "unknown"}


def test_icu_keeps_sex_and_age():
    data = datasets.create("icu").load(0)
    table = data.raw.table
    for split, rows in zip((data.train, data.validation, data.test), data.raw.parts, strict=True):
        assert list(split.patient_groups["age"]) == bands(table.numeric["age"][rows])
        assert list(split.patient_groups["sex"]) == table.categorical["sex"][rows].tolist()
    assert set(data.test.patient_groups["sex"]) == {"female", "male"}


def test_some_rows_have_their_own_groups():
    assert groups_of_rows({"sex": ["f", "m", "f"]}, np.array([2, 1])) == {"sex": ("f", "m")}
