"""Tables as datasets: prepared when it is known who holds which row."""

import numpy as np
import pytest

from wardround import datasets
from wardround.datasets.preprocessing import PreprocessingParams
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.datasets.statistics import describe_table, merge_numbers
from wardround.datasets.tabular import adopt, prepare_for_clients
from wardround.errors import DataError
from wardround.runs.config import load_config
from wardround.runs.runner import load_and_partition


def write(path, rows, start=0, sick=True, levels="ab"):
    lines = [f"{40 + start + i % 30},{levels[i % len(levels)]},{i % 2 if sick else 0}" for i in range(rows)]
    path.write_text("age,ward,died\n" + "\n".join(lines) + "\n")
    return path


SCHEMA = {
    "columns": [{"name": "age"}, {"name": "ward", "type": "category", "levels": ["a", "b", "c"]}],
    "label": {"name": "died", "classes": ["0", "1"]},
}


@pytest.mark.slow
def test_scales_come_from_each_clients_rows_and_never_from_all_together():
    run = {"dataset": {"name": "icu"}, "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.3}}
    dataset, assignment = load_and_partition(load_config(run))
    raw = dataset.raw
    said = [describe_table(raw.table, raw.parts[0][rows], dataset.class_names) for rows in assignment.train]
    for name in ("age", "meanbp"):
        merged = merge_numbers([client.columns[name] for client in said])
        scaling = dataset.preprocessing.scaling[name]
        assert (scaling.centre, scaling.scale, scaling.fill) == (merged.centre, merged.scale, merged.median)
    other, _ = load_and_partition(load_config({**run, "partition": {"name": "iid", "clients": 5}}))
    assert other.preprocessing.hash != dataset.preprocessing.hash
    assert other.feature_names == dataset.feature_names  # the model's shape does not depend on who holds what


@pytest.mark.parametrize("name", ["icu", "breast-cancer"])
def test_test_rows_say_nothing_about_the_preprocessing(name):
    dataset = datasets.create(name).load(0)
    raw = dataset.raw
    columns = {key: values.copy() for key, values in raw.table.numeric.items()}
    for values in columns.values():
        values[np.concatenate(raw.parts[1:])] *= 1000.0
    from dataclasses import replace

    changed = replace(dataset, raw=replace(raw, table=replace(raw.table, numeric=columns)))
    rows = [np.arange(len(dataset.train))]
    one = prepare_for_clients(dataset, ["a"], rows, PreprocessingParams())
    other = prepare_for_clients(changed, ["a"], rows, PreprocessingParams())
    assert one.preprocessing.hash == other.preprocessing.hash
    assert not np.array_equal(one.test.inputs, other.test.inputs)


def test_local_scales_are_each_clients_own():
    run = {"dataset": {"name": "icu"}, "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.3}}
    dataset, assignment = load_and_partition(load_config({**run, "preprocessing": {"scale": "local"}}))
    age = dataset.feature_names.index("age")
    for rows in assignment.train:
        own = dataset.train.inputs[rows][:, age].numpy()
        assert own.mean() == pytest.approx(0, abs=0.01)
        assert own.std() == pytest.approx(1, abs=0.01)


def test_hospitals_files_are_split_as_each_would_split_its_own(tmp_path):
    files = {
        "north": write(tmp_path / "n.csv", 50),
        "south": write(tmp_path / "s.csv", 70, start=9, levels="bc"),
    }
    together = datasets.create("csv", files=files, schema=SCHEMA).load(3)
    for name, path in files.items():
        alone = datasets.create("csv", file=path, schema=SCHEMA).load(3)
        own = np.flatnonzero(np.array(together.train.groups) == name)
        ages = together.raw.table.numeric["age"][together.raw.parts[0][own]]
        assert ages.tolist() == alone.raw.table.numeric["age"][alone.raw.parts[0]].tolist()


def test_a_file_may_lack_a_level_and_a_class_but_a_simulation_as_a_whole_may_not_lack_a_class(tmp_path):
    path = write(tmp_path / "healthy.csv", 60, sick=False)
    source = datasets.create("csv", file=path)
    dataset = source.load_as(Schema.from_dict(SCHEMA), 0)
    assert dataset.class_names == ("0", "1")
    assert dataset.feature_names == ("age", "ward=a", "ward=b", "ward=c", "ward=missing")
    with pytest.raises(DataError, match="no training sample of '1'"):
        datasets.create("csv", file=path, schema=SCHEMA).load(0)


def test_any_table_can_be_read_by_a_schema():
    dataset = datasets.create("breast-cancer").load(0)
    again = adopt(dataset, dataset.preprocessing, 0)
    assert np.array_equal(again.train.inputs, dataset.train.inputs)
    values = dataset.schema.to_dict()
    fewer = Schema.from_dict({**values, "columns": values["columns"][:3]})
    assert datasets.create("breast-cancer").load_as(fewer, 0).input_shape == (3,)
    narrow = Schema.from_dict({**values, "columns": [{"name": "mean radius", "range": [0, 10]}]})
    with pytest.raises(SchemaMismatch, match="column 'mean radius' holds"):
        datasets.create("breast-cancer").load_as(narrow, 0)
    with pytest.raises(DataError, match="is no table"):
        datasets.create("digits").load_as(fewer, 0)
