"""A first schema out of files."""

import pytest

from wardround.datasets.schema import Schema
from wardround.datasets.schema_inference import infer_schema
from wardround.errors import ConfigError, DataError


def write(path, header, rows):
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def files(tmp_path):
    one = write(
        tmp_path / "one.csv", ["age", "sex", "cp", "ward", "id", "num"],
        [[30 + i, i % 2, 1 + i % 4, ["a", "b"][i % 2], f"p{i}", i % 2] for i in range(60)],
    )  # fmt: skip
    two = write(
        tmp_path / "two.csv", ["age", "sex", "cp", "id", "num"],
        [[50 + i / 2, i % 2, 1.0 if i else "?", f"q{i}", 0] for i in range(60)],
    )  # fmt: skip
    return [one, two]


def test_types_levels_and_classes(files):
    inferred = infer_schema(files, "num")
    schema = inferred.schema
    assert {column.name: column.type for column in schema.columns} == {
        "age": "number", "sex": "number", "cp": "category", "ward": "category",
    }  # fmt: skip
    assert schema.column("cp").levels == ("1", "2", "3", "4")
    assert schema.column("cp").missing
    assert schema.column("sex").range == (0, 1)
    least, largest = schema.column("age").range
    assert least < 30
    assert largest > 89
    assert not schema.column("ward").required  # the second file has none
    assert schema.label.classes == ("0", "1")
    assert any("'id' has 120 different words: left out" in note for note in inferred.notes)
    assert any("'cp' is taken for codes" in note for note in inferred.notes)


def test_the_files_fit_what_was_inferred_from_them(files):
    from wardround.datasets.csv_files import read_table
    from wardround.datasets.schema_check import conform

    schema = Schema.infer(*files, label="num", drop=["id"], patient=None)
    for path in files:
        assert conform(read_table(path, []), schema, str(path)).targets is not None
    again = Schema.from_dict(schema.to_dict())
    assert again == schema


def test_what_is_asked_for_by_name(files):
    schema = infer_schema(
        files, "num", categorical=["sex"], drop=["ward"], patient="id", groups=["sex"]
    ).schema
    assert schema.column("sex").type == "category"
    assert schema.patient == "id"
    assert schema.groups == ("sex",)
    with pytest.raises(ConfigError, match="no column 'sx'; did you mean 'sex'"):
        infer_schema(files, "num", categorical=["sx"])


def test_labels_that_cannot_be_classes(files, tmp_path):
    with pytest.raises(DataError, match="'0' in every row"):
        infer_schema(files[1:], "num")
    with pytest.raises(DataError, match="a number to predict is not a class"):
        infer_schema(files, "age")
    with pytest.raises(DataError, match="no column 'nm'"):
        infer_schema(files, "nm")


def test_dates_are_numbers_of_days(tmp_path):
    rows = [[f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}", i % 2] for i in range(60)]
    inferred = infer_schema([write(tmp_path / "one.csv", ["admitted", "num"], rows)], "num")
    column = inferred.schema.column("admitted")
    assert column.type == "number"
    assert column.range[0] < 19723 < column.range[1], "1 January 2024"
    assert any("holds dates" in note for note in inferred.notes)
