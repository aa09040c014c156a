"""Tables against a schema: what fits is typed, what does not is named."""

import numpy as np
import pytest

from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import Problem, SchemaMismatch, conform

SCHEMA = Schema.from_dict(
    {
        "columns": [
            {"name": "age", "unit": "years", "range": [0, 120], "missing": False},
            {"name": "chol", "range": [50, 900], "missing_values": [0, -9]},
            {"name": "thal", "type": "category", "levels": [3, 6, 7]},
            {"name": "ca", "type": "category", "levels": ["0", "1"], "required": False},
        ],
        "label": {"name": "num", "classes": {"healthy": [0], "sick": [1, 2]}},
    }
)
TABLE = {
    "age": ["40", "50.5", "60"],
    "chol": ["200", "0", "?"],
    "thal": ["3.0", "", "7"],
    "num": ["0", "2", "1"],
    "name": ["not", "in", "schema"],
}


def test_what_fits_is_typed():
    table = conform(TABLE, SCHEMA, "a.csv")
    assert table.numeric["age"].tolist() == [40, 50.5, 60]
    assert np.isnan(table.numeric["chol"]).tolist() == [False, True, True]
    assert table.categorical["thal"].tolist() == ["3", "", "7"]
    assert table.categorical["ca"].tolist() == ["", "", ""]  # a column that it may lack
    assert table.targets.tolist() == [0, 1, 1]
    assert "name" not in table.numeric | table.categorical


def test_numbers_in_arrays_are_as_good_as_words():
    table = conform(
        {**TABLE, "age": np.array([40.0, 50.0, 60.0]), "thal": np.array([3.0, np.nan, 7.0])}, SCHEMA, "x"
    )
    assert table.categorical["thal"].tolist() == ["3", "", "7"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"age": ["40", "450", "460"]}, "holds '450' (row 2 and 1 more), expected a number from 0 to 120 in years"),
        ({"age": ["old", "50", "60"]}, "column 'age' holds 'old' (row 1), expected a number from 0 to 120"),
        ({"age": ["40", "", "60"]}, "column 'age' is empty (row 2), expected a number"),
        ({"chol": ["1e400", "60", "60"]}, "column 'chol' holds '1e400'"),
        ({"thal": ["3", "9", "3"]}, "column 'thal' holds '9' (row 2), expected one of 3, 6, 7"),
        ({"num": ["0", "5", "1"]}, "'num' holds '5' (row 2), expected the label, one of healthy (0), sick (1, 2)"),
        ({"num": ["0", "", "1"]}, "column 'num' is empty (row 2)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change, problem):
    with pytest.raises(SchemaMismatch) as mismatch:
        conform({**TABLE, **change}, SCHEMA, "a.csv")
    assert problem in str(mismatch.value)
    assert str(mismatch.value).startswith("a.csv: ")


def test_a_required_column_is_not_there():
    table = {name: cells for name, cells in TABLE.items() if name != "thal"}
    with pytest.raises(SchemaMismatch, match="column 'thal' is not there, expected one of 3, 6, 7"):
        conform(table, SCHEMA, "a.csv")
    with pytest.raises(SchemaMismatch, match="column 'num' is not there"):
        conform({name: cells for name, cells in TABLE.items() if name != "num"}, SCHEMA, "a.csv")


def test_a_table_to_predict_for_needs_no_label():
    table = {name: cells for name, cells in TABLE.items() if name != "num"}
    assert conform(table, SCHEMA, "a.csv", with_label=False).targets is None


def test_all_problems_are_kept_and_the_first_are_shown():
    table = {
        **TABLE,
        "age": ["x", "y", "z"],
        "chol": ["1"] * 3,
        "thal": ["1"] * 3,
        "num": ["9"] * 3,
        "ca": ["7"] * 3,
    }
    with pytest.raises(SchemaMismatch) as mismatch:
        conform(table, SCHEMA, "a.csv")
    assert [problem.column for problem in mismatch.value.problems] == ["age", "chol", "thal", "ca", "num"]


def test_what_the_server_is_told_has_no_row_and_a_value_only_if_allowed():
    problem = Problem("thal", "one of 3, 6, 7", "9", 12, 4)
    assert problem.describe(show_row=False) == "column 'thal' holds '9', expected one of 3, 6, 7"
    assert "9" not in problem.describe(show_value=False, show_row=False)


def test_dates_are_days():
    schema = Schema.from_dict({"columns": [{"name": "when"}], "label": {"name": "y", "classes": ["0", "1"]}})
    table = conform({"when": ["1970-01-02", "", "1970-01-03"], "y": ["0", "1", "1"]}, schema, "x")
    assert table.numeric["when"][[0, 2]].tolist() == [1, 2]


def test_other_words_are_none_of_the_levels_where_they_are_allowed():
    column = {"name": "thal", "type": "category", "levels": ["3"], "other": True, "missing": False}
    schema = Schema.from_dict({"columns": [column], "label": {"name": "y", "classes": ["0", "1"]}})
    assert conform({"thal": ["3", "8", ""], "y": ["0"] * 3}, schema, "x").categorical["thal"].tolist() == [
        "3",
        "8",
        "",
    ]
