"""Anyone's own table: types, roles, and every way it can be wrong."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from wardround import datasets
from wardround.datasets.base import Task, split_units
from wardround.errors import ConfigError, DataError

NEVER_TRAINED = split_units(np.arange(60), 0)[2][0]


def write(path: Path, rows: int = 60, **columns) -> Path:
    given = {
        "age": lambda i: 30 + i % 40,
        "sex": lambda i: "fm"[i % 2],
        "site": lambda i: f"hospital {i % 3}",
        "died": lambda i: i % 2,
        **columns,
    }
    lines = [",".join(given), *(",".join(str(make(i)) for make in given.values()) for i in range(rows))]
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def load(path: Path, **params):
    return datasets.create(
        "csv", **{"file": path, "label": "died", "categorical": ["sex"], "drop": ["site"], **params}
    ).load(0)


@pytest.mark.parametrize("name", ["stays.csv", "stays.csv.gz"])
def test_roles(tmp_path, name):
    data = load(write(tmp_path / name), client="site", drop=[])
    assert data.task is Task.BINARY
    assert data.feature_names == ("age", "sex=f", "sex=m")
    assert set(data.train.groups) == {"hospital 0", "hospital 1", "hospital 2"}
    assert len(data.train) + len(data.validation) + len(data.test) == 60


def test_nothing_is_fitted_beyond_training_rows(tmp_path):
    """The scaler knows the training rows alone: their mean is 0 and their deviation 1, the others' are not."""
    data = load(write(tmp_path / "t.csv", age=lambda i: i * i))
    train = data.train.inputs[:, 0].numpy()
    # Statistics have four digits of the spread: enough to standardise by.
    assert train.mean() == pytest.approx(0, abs=1e-4)
    assert train.std() == pytest.approx(1, abs=1e-4)
    assert abs(data.test.inputs[:, 0].numpy().mean()) > 1e-3


def test_gaps_take_the_training_median(tmp_path):
    path = write(tmp_path / "t.csv", age=lambda i: "" if i % 5 == 0 else i)
    values = np.array([np.nan if i % 5 == 0 else i for i in range(60)])
    train, _, test = split_units(np.arange(60), 0)
    filled = np.where(np.isnan(values), np.nanmedian(values[train]), values)
    # Scaled as the values that are known: those that fill gaps say nothing of the patients.
    expected = (filled - np.nanmean(values[train])) / np.nanstd(values[train])
    data = load(path)
    assert data.train.inputs[:, 0].numpy() == pytest.approx(expected[train], abs=1e-4)
    assert data.test.inputs[:, 0].numpy() == pytest.approx(expected[test], abs=1e-4)


def test_rows_of_a_patient_stay_together(tmp_path):
    path = write(tmp_path / "t.csv", patient=lambda i: f"p{i // 4}", number=lambda i: i)
    data = load(path, patient="patient", drop=["site", "age"])
    order = [part.inputs[:, 0] for part in (data.train, data.validation, data.test)]
    ranks = np.argsort(np.argsort(np.concatenate(order)))  # the standardised row number gives the row back
    sizes = np.cumsum([0, *map(len, order)])
    patients = [set((ranks[a:b] // 4).tolist()) for a, b in itertools.pairwise(sizes)]
    assert not patients[0] & patients[1]
    assert not patients[0] & patients[2]
    assert not patients[1] & patients[2]


def test_labels_in_words_and_the_positive_one(tmp_path):
    path = write(tmp_path / "t.csv", died=lambda i: ["control", "case"][i % 2])
    assert load(path).class_names == ("control", "case"), "the word for yes, not the later in the alphabet"
    assert load(path, positive="control").class_names == ("case", "control")
    data = load(path, positive="case")
    assert data.class_names == ("control", "case")
    assert data.facts["labels"] == {"control": 30, "case": 30}


def test_numbers_as_labels_are_ordered_as_numbers(tmp_path):
    path = write(tmp_path / "t.csv", died=lambda i: ["10", "2.0", "2", "1"][i % 4])
    data = load(path)
    assert data.task is Task.MULTICLASS
    assert data.class_names == ("1", "2", "10")
    assert data.facts["labels"] == {"1": 15, "2": 30, "10": 15}


def broken(tmp_path: Path, what: str) -> Path:
    path = tmp_path / "broken.csv"
    if what == "absent":
        return tmp_path / "nowhere.csv"
    if what == "truncated":
        packed = write(tmp_path / "whole.csv.gz", rows=500).read_bytes()
        path = tmp_path / "broken.csv.gz"
        path.write_bytes(packed[: len(packed) // 2])
    elif what == "ragged":
        path.write_text("age,sex,site,died\n1,f,a,0\n2,m,a\n")
    elif what == "headless":
        path.write_text("age,sex,site,died\n")
    elif what == "binary":
        path.write_bytes(b"age,sex,site,died\n\xff\xfe\x00,f,a,0\n")
    elif what == "twice":
        path.write_text("age,age,sex,site,died\n1,1,f,a,0\n")
    return path


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("absent", "nowhere.csv does not exist"),
        ("truncated", "damaged or cut short"),
        ("ragged", "line 3: 3 cells where the header has 4"),
        ("headless", "no rows"),
        ("binary", "not UTF-8"),
        ("twice", "two columns named 'age'"),
    ],
)
def test_broken_files(tmp_path, what, says):
    with pytest.raises(DataError, match=says):
        load(broken(tmp_path, what))


@pytest.mark.parametrize(
    ("columns", "params", "error", "says"),
    [
        ({}, {"label": "deid"}, DataError, "no column 'deid'; did you mean 'died'"),
        ({}, {"drop": []}, DataError, "column 'site' holds 'hospital 0' .row 1., not a number.*categorical"),
        ({"age": lambda i: "12;5" if i == 7 else i}, {}, DataError, "column 'age' holds '12;5' .row 8."),
        ({"age": lambda i: "inf"}, {}, DataError, "infinite"),
        ({"died": lambda i: 1}, {}, DataError, "'1' in every row"),
        ({"died": lambda i: i / 7}, {}, DataError, "60 different values"),
        ({"died": lambda i: "" if i == 2 else 1}, {}, DataError, "column 'died' is empty in row 3"),
        ({"died": lambda i: 2 if i == NEVER_TRAINED else i % 2}, {}, DataError, "no training sample of"),
        (
            {"site": lambda i: ""},
            {"client": "site", "drop": []},
            DataError,
            "column 'site' is empty in row 1",
        ),
        ({}, {"drop": ["died"]}, ConfigError, "two roles"),
        ({}, {"positive": "2"}, ConfigError, "positive='2'"),
        ({}, {"drop": ["site", "age"], "categorical": [], "patient": "sex"}, DataError, "no column is left"),
    ],
)
def test_bad_input(tmp_path, columns, params, error, says):
    with pytest.raises(error, match=says):
        load(write(tmp_path / "t.csv", **columns), **params)


def test_required_options_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"give file .one table. or files"):
        datasets.create("csv")
    with pytest.raises(ConfigError, match=r"'label' .or time and event, or a schema. is required"):
        datasets.create("csv", file=write(tmp_path / "t.csv")).load(0)
