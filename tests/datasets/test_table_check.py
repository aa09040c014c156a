"""`wardround data check`: what is wrong with a table, each thing by itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from wardround import datasets
from wardround.datasets.base import split_units
from wardround.datasets.table_check import check_table
from wardround.errors import DataError

ROWS = 120


def write(path, rows=ROWS, separator=",", encoding="utf-8", **columns):
    """A table in which nothing is wrong, but for the columns given."""
    rng = np.random.default_rng(0)
    ages = rng.permutation(10 * rows)[:rows]
    made = {
        "age": lambda i: ages[i],
        "site": lambda i: f"hospital {i % 3}",
        "died": lambda i: int(i % 4 == 0),
        **columns,
    }
    made = {name: make for name, make in made.items() if make is not None}
    lines = [separator.join(made)]
    lines += [separator.join(str(make(i)) for make in made.values()) for i in range(rows)]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


def check(path, seed=0, **params):
    options = {"label": "died", "client": "site", **params}
    files = {"files": path} if isinstance(path, dict) else {"file": path}
    return check_table(datasets.create("csv", **files, **{k: v for k, v in options.items() if v}), seed)


def said(checked, level):
    return "\n".join(checked.of(level))


def test_a_table_in_which_nothing_is_wrong(tmp_path):
    checked = check(write(tmp_path / "t.csv"))
    assert checked.findings == ()
    assert (checked.rows, checked.class_names, checked.classes) == (ROWS, ("0", "1"), (90, 30))
    assert [hospital.name for hospital in checked.hospitals] == ["hospital 0", "hospital 1", "hospital 2"]
    assert sum(hospital.rows for hospital in checked.hospitals) == ROWS
    parts = split_units(np.arange(ROWS), 0)
    assert {name: sum(counts) for name, counts in checked.splits.items()} == dict(
        zip(("train", "validation", "test"), map(len, parts), strict=True)
    )


def test_the_split_is_the_datasets_own(tmp_path):
    """Counted here, and in the dataset that a run loads: for one file, and for one file per hospital."""
    path = write(tmp_path / "t.csv", patient=lambda i: f"p{i // 3}")
    both = {"file": path, "client": "site"}, {"files": {"a": path, "b": path}, "drop": ["site"]}
    for params in both:
        source = datasets.create("csv", label="died", patient="patient", **params)
        data, checked = source.load(3), check_table(source, 3)
        for name, split in (("train", data.train), ("validation", data.validation), ("test", data.test)):
            assert list(checked.splits[name]) == np.bincount(split.targets, minlength=2).tolist()
        for hospital in checked.hospitals:
            assert hospital.train == data.train.groups.count(hospital.name)
            assert hospital.test == data.test.groups.count(hospital.name)


def test_how_the_file_is_written(tmp_path):
    path = write(tmp_path / "t.csv", separator=";", encoding="latin-1", größe=lambda i: f"1,{i + 10}")
    checked = check(path)
    (file,) = checked.files
    assert (file.separator, file.decimal, file.encoding) == (";", ",", "Latin-1")
    assert "read as Latin-1" in said(checked, "note")
    assert "Latin-1" not in said(check(path, encoding="latin-1"), "note")


@pytest.mark.parametrize(
    ("column", "how"),
    [
        (lambda i: 100 + i if i % 4 == 0 else i % 50, "AUROC of 1.000"),
        (lambda i: -i if i % 4 == 0 else 1 + i, "AUROC of 1.000"),
        (lambda i: "2024-01-01" if i % 4 == 0 else "", "whether it is filled"),
        (
            lambda i: "discharged" if i % 4 else ["morgue", "hospice"][i % 8 // 4],
            "each of its 3 values occurs with one",
        ),
    ],
)
def test_a_column_that_gives_the_label_away(tmp_path, column, how):
    path = write(tmp_path / "t.csv", leak=column)
    checked = check(path, categorical=["leak"] if "values" in how else [])
    (warning,) = [text for text in checked.of("warning") if "gives the label away" in text]
    assert warning.startswith("column 'leak'")
    assert how in warning


@pytest.mark.parametrize(
    "column", [lambda i: i * 7 % ROWS, lambda i: f"id {i}", lambda i: i % 5, lambda i: "" if i % 3 else i % 7]
)
def test_a_column_that_does_not(tmp_path, column):
    assert "gives the label away" not in said(check(write(tmp_path / "t.csv", other=column)), "warning")


def test_the_auroc_of_a_column_is_the_usual_one(tmp_path):
    values = np.random.default_rng(3).normal(size=ROWS) + 1.5 * (np.arange(ROWS) % 4 == 0)
    checked = check(write(tmp_path / "t.csv", lab=lambda i: "" if i % 10 == 5 else values[i]))
    (column,) = [column for column in checked.columns if column.name == "lab"]
    filled = np.arange(ROWS) % 10 != 5
    assert column.auroc == pytest.approx(roc_auc_score((np.arange(ROWS) % 4 == 0)[filled], values[filled]))
    assert column.gaps == ROWS // 10


@pytest.mark.parametrize(
    ("columns", "params", "level", "says"),
    [
        ({"sex": lambda i: "fm"[i % 2]}, {}, "error", "column 'sex' holds words ('f' in row 1): name it under `cat"),
        ({"note": lambda i: f"n{i}"}, {}, "error", "all different: an identifier or a note"),
        ({"code": lambda i: f"c{i % 60}"}, {}, "error", "60 different ones: name it under `drop`"),
        ({"lab": lambda i: "k.A." if i == 7 else i}, {}, "error", "'k.A.' in row 8) among numbers"),
        ({"day": lambda i: f"0{i % 9 + 1}/0{i % 7 + 1}/2024"}, {}, "error", "day and month cannot be told apart"),
        ({"day": lambda i: f"2024-01-{i % 28 + 1:02d}"}, {}, "note", "column 'day' holds dates"),
        ({"lab": lambda i: ""}, {}, "warning", "column 'lab' is empty: name it under `drop`"),
        ({"lab": lambda i: i if i % 3 == 0 else ""}, {}, "warning", "column 'lab' is empty in 67 % of the rows"),
        ({"unit": lambda i: 7}, {}, "note", "column 'unit' is the same in every row"),
        ({"patient_id": lambda i: i // 2}, {}, "warning", "column 'patient_id' repeats: if it names the patient"),
        ({"died": lambda i: "" if i == 4 else i % 2}, {}, "error", "label 'died' is empty in 1 rows, the first is row"),
        ({"died": lambda i: ["tot", "lebend"][i % 2]}, {"positive": "x"}, "error", "must be one of two labels"),
        ({"died": lambda i: "AB"[i % 2]}, {}, "warning", "'B' is taken for the class to predict: give `positive`"),
        ({"died": lambda i: 1}, {}, "error", "label 'died' is '1' in every row"),
        ({"died": lambda i: i}, {}, "error", "120 different values"),
        ({"died": lambda i: i % 2}, {"positive": "yes"}, "error", "positive='yes' must be one of two labels"),
        ({"died": lambda i: int(i == 5)}, {}, "warning", "class '1' is rare: 1 of 120 rows"),
        ({"site": lambda i: "big" if i > 8 else "small"}, {}, "warning", "hospital 'small' is small: "),
        ({"site": lambda i: "ab"[i % 4 == 0]}, {}, "note", "hospital 'a' has no row of '1'"),
        ({"site": lambda i: "" if i == 3 else "a"}, {}, "error", "column 'site' (client) is empty in 1 rows"),
        ({"age": None}, {}, "error", "no column is left to be a feature"),
        ({}, {"label": None}, "note", "no label is given, so classes are not checked; columns with two values: died"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path, columns, params, level, says):
    checked = check(write(tmp_path / "t.csv", **columns), **params)
    assert says in said(checked, level), checked.findings


def test_repeated_rows(tmp_path):
    same = check(
        write(tmp_path / "t.csv", age=lambda i: i // 12, site=lambda i: "a", died=lambda i: i // 12 % 2)
    )
    assert same.duplicates == 110
    assert "110 rows repeat an earlier one (92 %)" in said(same, "warning")
    torn = check(write(tmp_path / "u.csv", age=lambda i: i // 2, site=lambda i: "a", died=lambda i: i % 2))
    assert "60 rows repeat an earlier one with another label" in said(torn, "note")


def test_classes_that_a_split_lacks(tmp_path):
    train, _, test = split_units(np.arange(ROWS), 0)
    only_trained = check(write(tmp_path / "t.csv", died=lambda i: int(i in train[:10])))
    assert "class '1' has no test row with seed 0" in said(only_trained, "warning")
    only_tested = check(write(tmp_path / "u.csv", died=lambda i: int(i in test[:10])))
    assert "class '1' has no training row with seed 0" in said(only_tested, "error")


def test_files_of_several_hospitals(tmp_path):
    paths = {
        "north": write(tmp_path / "north.csv", site=None),
        "south": write(tmp_path / "south.csv", site=None, separator=";", lactate=lambda i: f"{i},5"),
    }
    checked = check(paths, client=None)
    assert [(file.rows, file.separator) for file in checked.files] == [(120, ","), (120, ";")]
    assert "column 'lactate' is missing in north" in said(checked, "warning")
    assert "written differently" in said(checked, "note")
    assert [hospital.rows for hospital in checked.hospitals] == [120, 120]


def test_a_schema_says_what_does_not_fit(tmp_path):
    path = write(tmp_path / "t.csv")
    schema = {
        "columns": [{"name": "age", "range": [0, 600]}, {"name": "lactate"}],
        "label": {"name": "died", "classes": ["0", "1"]},
    }
    checked = check(path, label=None, client=None, schema=schema)
    assert "age" in said(checked, "error")
    assert "lactate" in said(checked, "error")
    assert checked.classes == (90, 30)


def test_a_column_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no column 'deid'; did you mean 'died'"):
        check(write(tmp_path / "t.csv"), label="deid")
