"""Arrays as users have them, and what is wrong with them."""

import numpy as np
import pytest

from wardround.api.arrays import read_samples
from wardround.datasets.base import Task
from wardround.errors import WardroundError

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 0, 1])


def test_classes_are_those_of_all_clients():
    samples = read_samples({"a": (X, [3, 3, 3, 3]), "b": (X, [1.0, 2.0, 1.0, 2.0])})
    assert samples.task is Task.MULTICLASS
    assert samples.class_names == ("1", "2", "3")
    assert samples.clients["a"].targets.tolist() == [2, 2, 2, 2]
    assert samples.clients["b"].targets.tolist() == [0, 1, 0, 1]


def test_a_frame_brings_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "sodium", "lactate"])
    assert read_samples({"a": (frame, Y)}).feature_names == ("age", "sodium", "lactate")
    frame.loc[2, "lactate"] = np.nan
    with pytest.raises(WardroundError, match=r"1 NaN or infinite value.*row 2, column lactate"):
        read_samples({"a": (frame, Y)})
    with pytest.raises(WardroundError, match=r"X must be numbers .column sex holds 'f'."):
        read_samples({"a": (pandas.DataFrame({"age": [1, 2], "sex": ["f", "m"]}), [0, 1])})


def test_the_rows_are_a_copy():
    mine = X.astype(np.float32)
    samples = read_samples({"a": (mine, Y)})
    mine[0, 0] = 99
    assert samples.clients["a"].inputs[0, 0] == 0


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ({"a": X}, "client 'a': expected a pair .X, y., got ndarray"),
        ({"a": (X, Y[:3])}, "client 'a': X has 4 rows, y has 3"),
        (
            {"a": (X, Y), "b": (X[:, :2], Y)},
            r"client 'b': a row of X has the shape \(2,\), one of client 'a' \(3,\)",
        ),
        ({"a": (X[:, 0], Y)}, r"reshape\(-1, 1\)"),
        ({"a": (X[:0], Y[:0])}, "client 'a' has no rows"),
        ({"a": (X, Y * 0)}, "every row has the label 0; two classes are needed"),
        ({"a": (X, [0, 1, np.nan, 1])}, "y holds NaN"),
        ({"a": (X, [0, 1, None, 1])}, "y holds empty labels"),
        ({"a": (np.full((4, 3), np.inf), Y)}, "12 NaN or infinite"),
        ({"a": (np.arange(180.0).reshape(60, 3), np.arange(60))}, "60 different values"),
        ({"a": (X, Y), "b": (X, np.eye(4))}, "y must have one form for all"),
        ({"a": (X, 2 * np.eye(4))}, "findings, each 0 or 1"),
        ({"a": (X, [[7.5, 0], [3, 1], [9, 0], [2, 1]])}, "times and events are read from a table: dataset="),
        ({"a": (X, np.zeros((4, 1, 2)))}, "y must have one label per row"),
        ({None: (X, Y * 0)}, "every row has the label"),
    ],
)
def test_what_is_wrong_is_said(clients, says):
    with pytest.raises(WardroundError, match=says) as error:
        read_samples(clients)
    assert "\n" not in str(error.value)
