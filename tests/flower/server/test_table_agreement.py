"""What the server makes of what hospitals say of their tables."""

import pytest

from wardround.datasets.preprocessing import PreprocessingParams
from wardround.datasets.schema import Schema
from wardround.errors import WardroundError
from wardround.flower.server.table_agreement import agree, shape_of

SCHEMA = Schema.from_dict({"columns": [{"name": "age"}], "label": {"name": "died", "classes": ["0", "1"]}})


def said(mean=60.0, **change):
    age = {
        "type": "number",
        "count": 100,
        "missing": 0.0,
        "mean": mean,
        "spread": 10.0,
        "quantiles": {"0.5": mean},
    }
    statistics = {"rows": 100, "classes": {"0": 50, "1": 50}, "columns": {"age": {**age, **change}}}
    return {"label": "died", "statistics": statistics}


def run(tables, schema=SCHEMA, **params):
    events = []
    preprocessing = agree(
        tables, schema, PreprocessingParams(**params), lambda event, **fields: events.append((event, fields))
    )
    return preprocessing, events


def test_statistics_that_cannot_be_read_are_left_out_and_logged():
    tables = {
        "a": said(50.0),
        "b": said(60.0),
        "c": said(70.0),
        "liar": said(float("nan")),
        "odd": {"statistics": 7},
    }
    preprocessing, events = run(tables)
    assert preprocessing.scaling["age"].centre == 60.0
    assert {fields["client"] for event, fields in events if event == "statistics-ignored"} == {"liar", "odd"}
    assert events[-1][1]["clients"] == ["a", "b", "c"]


def test_without_a_schema_the_hospitals_decide():
    preprocessing, _ = run({"a": said(), "b": said()}, schema=None)
    assert preprocessing.schema.label.name == "died"
    assert shape_of(preprocessing)["feature_names"] == ["age"]
    with pytest.raises(WardroundError, match="a federation without a schema needs"):
        run({"a": {"label": "died"}}, schema=None)


def test_nobody_need_say_anything_where_nothing_is_scaled_by_all():
    assert run({"a": {"label": "died"}}, scale="none")[0].scaling["age"].scale == 1.0
    with pytest.raises(WardroundError, match=r"preprocessing.scale: federation needs"):
        run({"a": {"label": "died"}})


def test_the_shape_has_what_an_exported_model_needs():
    shape = shape_of(run({"a": said()})[0])
    assert shape["task"] == "binary"
    assert shape["input_shape"] == [1]
    assert shape["schema"]["label"]["classes"] == ["0", "1"]
    assert shape["preprocessing"]["scaling"]["age"] == {"fill": 60.0, "centre": 60.0, "scale": 10.0}
