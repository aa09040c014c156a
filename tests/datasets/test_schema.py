"""A schema as people write it: read, written, and mistakes said in one line."""

import pytest

from wardround.datasets.schema import Column, Schema, SchemaOption, canonical
from wardround.errors import ConfigError

VALUES = {
    "columns": [
        {"name": "age", "unit": "years", "range": [0, 120], "missing": False},
        {"name": "chol", "range": [50, None], "missing_values": [0]},
        {"name": "pain", "type": "category", "levels": [1, 2.0, "none"], "required": False},
    ],
    "label": {"name": "num", "classes": {"sick": [1, 2, 3, 4], "healthy": 0}, "positive": "sick"},
    "patient": "mrn",
    "groups": ["sex"],
}


def test_what_is_written_is_read_back(tmp_path):
    schema = Schema.from_dict(VALUES)
    path = tmp_path / "schema.yaml"
    path.write_text(schema.dump())
    again = Schema.load(path)
    assert again == schema
    assert again.hash == schema.hash
    assert path.read_text().count("\n  - {name:") == 3  # one line per column, for people


def test_the_hash_is_of_the_meaning():
    one, other = Schema.from_dict(VALUES), Schema.from_dict({**VALUES, "version": 1})
    assert one.hash == other.hash
    changed = {**VALUES, "columns": [{**VALUES["columns"][0], "range": [0, 121]}, *VALUES["columns"][1:]]}
    assert Schema.from_dict(changed).hash != one.hash


def test_classes_and_features():
    schema = Schema.from_dict(VALUES)
    assert schema.label.classes == ("healthy", "sick")  # the positive one is the last
    assert schema.label.index() == {"0": 0, "1": 1, "2": 1, "3": 1, "4": 1}
    assert schema.feature_names == ("age", "chol", "pain=1", "pain=2", "pain=none", "pain=missing")


def test_a_category_that_is_never_empty_has_no_feature_for_it():
    column = Column(name="sex", type="category", levels=("f", "m"), missing=False)
    label = {"name": "y", "classes": ["0", "1"]}
    assert Schema(columns=(column,), label=label).feature_names == ("sex=f", "sex=m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": []}, "columns"),
        ({"columns": [{"name": "a"}, {"name": "a"}]}, "column 'a' is listed twice"),
        ({"columns": [{"name": "a", "levels": ["x"]}]}, "a number has no levels"),
        ({"columns": [{"name": "a", "type": "category"}]}, "a category needs levels"),
        ({"columns": [{"name": "a", "range": [3, 1]}]}, "the least must not be above the largest"),
        ({"columns": [{"name": "a", "required": False, "missing": False}]}, "missing must be true"),
        ({"columns": [{"name": "a", "type": "category", "levels": [True, False]}]}, "write it in quotes"),
        ({"columns": [{"name": "a", "type": "category", "levels": ["1", "1.0"]}]}, "a level is listed twice"),
        ({"columns": [{"name": "a", "lvels": ["x"]}]}, "unknown key"),
        ({"columns": [{"name": "num"}]}, "is the label and cannot be a feature"),
        ({"label": {"name": "y", "classes": ["a"]}}, "classes"),
        ({"label": {"name": "y", "classes": ["a", "b"], "positive": "c"}}, "positive must be one of two"),
        ({"label": {"name": "y", "classes": {"a": [1], "b": [1.0]}}}, "a cell stands for two classes"),
        ({"patient": "age"}, "two roles"),
        ({"version": 9}, "version 9"),
        ({"colums": []}, "unknown key"),
    ],
)
def test_mistakes_are_one_line(change, words):
    with pytest.raises(ConfigError, match=words) as error:
        Schema.from_dict({**VALUES, **change}, "schema.yaml")
    assert str(error.value).startswith("schema.yaml: ")
    assert "\n" not in str(error.value)


def test_files_that_are_no_schema(tmp_path):
    with pytest.raises(ConfigError, match="wardround schema infer"):
        Schema.load(tmp_path / "nowhere.yaml")
    path = tmp_path / "broken.yaml"
    path.write_text("columns: [")
    with pytest.raises(ConfigError, match="not valid YAML in line"):
        Schema.load(path)
    path.write_text("label: {name: a, name: b}\n")
    with pytest.raises(ConfigError, match="'name' is given twice"):
        Schema.load(path)
    path.write_text("- a\n- b\n")
    with pytest.raises(ConfigError, match="expected keys and values"):
        Schema.load(path)


def test_a_schema_is_given_as_a_file_or_as_it_is(tmp_path):
    schema = Schema.from_dict(VALUES)
    (tmp_path / "s.yaml").write_text(schema.dump())
    assert SchemaOption(schema=tmp_path / "s.yaml").given_schema() == schema
    assert SchemaOption(schema=schema.to_dict()).given_schema() == schema
    assert SchemaOption().given_schema() is None


def test_cells_are_compared_as_numbers_where_they_are_some():
    assert {canonical(cell) for cell in ("3", "3.0", " 3.00 ", "3e0")} == {"3"}
    assert canonical("inf") == "inf"
