"""Raw tables as columns: gaps, words and dates."""

import numpy as np
import pytest
import torch

from wardround.api.frames import raw_columns
from wardround.errors import DataError


def test_a_frame_of_all_kinds():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": [61.5, np.nan, 70],
            "beds": pandas.array([1, None, 3], dtype="Int64"),
            "sex": ["f", None, " m "],
            "ward": pandas.Categorical(["3.0", "north", None]),
            "icu": [True, False, True],
            "day": pandas.to_datetime(["1970-01-02", None, "1970-01-03 12:00"], format="ISO8601"),
        }
    )
    columns = raw_columns(frame, "a")
    np.testing.assert_array_equal(columns["age"], [61.5, np.nan, 70])
    np.testing.assert_array_equal(columns["beds"], [1, np.nan, 3])
    np.testing.assert_array_equal(columns["icu"], [1, 0, 1])
    np.testing.assert_array_equal(columns["day"], [1, np.nan, 2.5])
    assert columns["sex"].tolist() == ["f", "", "m"]
    assert columns["ward"].tolist() == ["3", "north", ""]


def test_arrays_have_numbered_columns():
    rows = [[1.0, 2.0], [3.0, np.nan]]
    for values in (rows, np.array(rows), torch.tensor(rows)):
        columns = raw_columns(values, "a")
        assert list(columns) == ["0", "1"]
        np.testing.assert_array_equal(columns["1"], [2, np.nan])
    assert list(raw_columns({"x": [1, 2]}, "a")) == ["x"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros(3), "preprocessing is for tables"),
        (np.zeros((2, 1, 8, 8)), "preprocessing is for tables"),
        ({"x": [1.0, np.inf]}, r"column 'x' holds an infinite value \(row 1\)"),
    ],
)
def test_what_is_no_table(values, says):
    with pytest.raises(DataError, match=says):
        raw_columns(values, "client 'a'")
