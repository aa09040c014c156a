"""An exported model, read back: hashes, and predictions for tables."""

import shutil

import numpy as np
import pytest
import torch

from wardround.errors import ConfigError, DataError
from wardround.experiments import load_config
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.manifest import FILES, MANIFEST
from wardround.runs.runner import load_and_partition


@pytest.fixture
def copied(model_folder, tmp_path):
    out = tmp_path / "model"
    shutil.copytree(model_folder, out)
    return out


@pytest.mark.parametrize("name", [name for name in FILES if name != "model.onnx"])
def test_one_flipped_bit_in_any_file_is_refused(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is not the file that was exported"):
        ExportedModel.load(copied)


def test_a_missing_file_is_refused(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model.safetensors is missing"):
        ExportedModel.load(copied)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"not an exported model .no {MANIFEST}"):
        ExportedModel.load(tmp_path)


def test_samples_of_another_shape_are_refused(model_folder):
    with pytest.raises(DataError, match=r"samples of shape \[3\], where the model takes"):
        ExportedModel.load(model_folder).predict(np.zeros((2, 3)))


def with_task(model, task, names, **thresholds):
    from dataclasses import replace

    return ExportedModel(
        replace(model.manifest, task=task, class_names=names, thresholds=thresholds),
        ModelInputs(task, names, model.inputs.input_shape, model.inputs.feature_names),
        model.network,
        model.weights,
    )


def test_classes_follow_from_the_threshold(model_folder):
    model = ExportedModel.load(model_folder)
    shares = np.array([[0.1], [0.3], [0.30001], [0.9]])
    own = with_task(model, "binary", ("well", "ill"), ill=0.3)._named(shares)
    assert own.class_names == ("ill",)
    assert own.labels == ("well", "well", "ill", "ill")
    several = np.array([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2]])
    assert with_task(model, "multi-class", ("a", "b", "c"))._named(several).labels == ("b", "a")
    own = with_task(model, "multi-label", ("a", "b", "c"), a=0.5, b=0.4, c=0.25)._named(several)
    assert own.labels == ("b;c", "a")


def test_dates_are_the_numbers_that_training_had():
    from wardround.datasets.schema import Schema
    from wardround.runs.export.exported import _with_dates

    schema = Schema.from_dict(
        {
            "columns": [{"name": "admitted"}, {"name": "age"}, {"name": "note"}],
            "label": {"name": "died", "classes": ["no", "yes"]},
        }
    )
    columns = {"admitted": ["1970-01-11", "", "1970-01-02"], "age": ["40", "NA", "3"], "note": ["x", "2", ""]}
    changed = _with_dates(columns, schema, "t.csv")
    assert np.array_equal(changed["admitted"], [10.0, np.nan, 1.0], equal_nan=True)
    assert changed["age"] == columns["age"]
    assert changed["note"] == columns["note"], "the schema's own message is the better one"


def test_predict_is_for_tables(model_folder):
    model = ExportedModel.load(model_folder)
    images = ExportedModel(
        model.manifest, ModelInputs("binary", ("a", "b"), (1, 8, 8)), model.network, model.weights
    )
    with pytest.raises(
        ConfigError, match=r"predict is for tables; this model takes samples of shape 1 × 8 × 8"
    ):
        images.predict_table({"a": ["1"]}, "t.csv")


def test_inputs_keep_what_they_were(finished_run):
    dataset, _ = load_and_partition(load_config(finished_run.config()))
    inputs = ModelInputs.of(dataset)
    assert ModelInputs.from_json(inputs.to_json()) == inputs
    assert inputs.is_table
    assert inputs.positive == dataset.class_names[1]
    assert torch.Size(inputs.input_shape) == dataset.train.inputs.shape[1:]
