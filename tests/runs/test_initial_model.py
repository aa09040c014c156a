"""A run that begins from an exported model: its weights, its preprocessing, and what does not fit."""

import csv
import shutil

import numpy as np
import pytest
import torch
import yaml

from wardround.errors import ConfigError, DataError
from wardround.experiments import load_config, run
from wardround.runs.config import read_yaml
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.writer import export_run
from wardround.runs.identity import experiment_of
from wardround.runs.runner import build, load_and_partition


@pytest.fixture
def exported(tiny, tmp_path):
    """The model of a run on a generated table."""
    out = tmp_path / "model"
    export_run(run(load_config(tiny), tmp_path / "first"), out, onnx=False)
    return out


def test_round_one_starts_from_the_exported_weights(tiny, tmp_path, exported):
    config = load_config({**tiny, "initial_model": str(exported), "seed": 0})
    federation = build(config)
    assert torch.equal(federation.weights, ExportedModel.load(exported).weights)
    folder = run(config, tmp_path / "second")
    recorded = folder.config()["initial_model"]
    assert recorded["path"] == str(exported)
    assert load_config(folder.config()).hash == config.hash, "config.yaml is itself a valid configuration"


def test_it_is_another_run_than_one_from_new_weights_and_the_same_wherever_the_model_lies(
    tiny, tmp_path, exported
):
    config = load_config({**tiny, "initial_model": str(exported)})
    assert config.hash != load_config(tiny).hash
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(exported, elsewhere)
    moved = load_config({**tiny, "initial_model": str(elsewhere)})
    assert moved.hash == config.hash
    assert experiment_of(moved.plain()) == experiment_of(config.plain())


def test_a_relative_path_is_seen_from_the_configurations_folder(tiny, tmp_path, exported, monkeypatch):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**tiny, "initial_model": "model"}))
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    assert load_config(read_yaml(tmp_path / "c.yaml")).initial_model.path == str(exported)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"name": "mlp", "hidden": [9]}},
            r"is another network: '0.weight' has shape \[9, 6\] here",
        ),
        ({"model": {"name": "mlp", "hidden": [8, 4]}}, "is another network"),
        ({"dataset": {"name": "synthetic", "samples": 400, "features": 7}}, "has other input shape"),
    ],
)
def test_another_network_or_other_data_are_refused_before_anything_is_written(
    tiny, tmp_path, exported, change, message
):
    config = load_config({**tiny, **change, "initial_model": str(exported)})
    with pytest.raises(ConfigError, match=message):
        run(config, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_folder_that_is_no_model_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"initial_model: .* is not an exported model"):
        load_config({**tiny, "initial_model": str(tmp_path)})
    with pytest.raises(ConfigError, match="initial_model: expected the folder of an exported model"):
        load_config({**tiny, "initial_model": 3})


def test_a_model_that_was_changed_is_refused(tiny, tmp_path, exported):
    config = load_config({**tiny, "initial_model": str(exported)})
    plain = config.plain()
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="is not the file that was exported"):
        build(config)
    manifest = exported / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ConfigError, match="holds another model than when the run was begun"):
        load_config(plain)


def test_caac_guard_judges_a_model_that_is_not_new_like_any_other(tiny, exported):
    values = {**tiny, "aggregator": {"name": "caac-guard"}, "initial_model": str(exported)}
    federation = build(load_config(values))
    with federation.trainer:
        record = federation.step(1)
    assert not any(client.flag for client in record.clients)


def table(path, shift, seed):
    random = np.random.default_rng(seed)
    age = random.normal(60 + shift, 10, 200).round(1)
    pain = random.choice(["mild", "strong"], 200)
    died = (age - shift + 10 * (pain == "strong") + random.normal(0, 5, 200)) > 66
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("age", "pain", "died"), *zip(age, pain, died.astype(int), strict=True)])
    return str(path)


def test_the_exported_preprocessing_is_used_not_one_of_the_new_data(tmp_path):
    """Fifteen years older patients stay older: their mean does not become the average again."""

    def values(file):
        return {
            "dataset": {"name": "csv", "file": file, "label": "died", "categorical": ["pain"]},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "rounds": 2,
        }

    first = run(load_config(values(table(tmp_path / "a.csv", 0, 1))), tmp_path / "first")
    export_run(first, tmp_path / "model", onnx=False)
    scaling = ExportedModel.load(tmp_path / "model").preprocessing
    older = values(table(tmp_path / "b.csv", 15, 2))
    fresh, _ = load_and_partition(load_config(older))
    dataset, assignment = load_and_partition(load_config({**older, "initial_model": str(tmp_path / "model")}))
    assert dataset.preprocessing.to_dict() == scaling.to_dict()
    assert dataset.feature_names == scaling.feature_names
    assert abs(float(fresh.train.inputs[:, 0].mean())) < 0.2
    assert float(dataset.train.inputs[:, 0].mean()) > 1.0
    assert sorted(np.concatenate(assignment.train).tolist()) == list(range(len(dataset.train)))
    assert torch.equal(dataset.train.targets, fresh.train.targets), "the same rows in the same order"
    again = run(load_config({**older, "initial_model": str(tmp_path / "model")}), tmp_path / "second")
    export_run(again, tmp_path / "next", onnx=False)
    assert ExportedModel.load(tmp_path / "next").preprocessing.to_dict() == scaling.to_dict()
    assert "an exported model" in (tmp_path / "next" / "MODEL_CARD.md").read_text()


def test_a_level_that_the_exported_schema_does_not_know_is_named(tmp_path):
    schema = {
        "columns": [{"name": "age"}, {"name": "pain", "type": "category", "levels": ["mild", "strong"]}],
        "label": {"name": "died", "classes": ["0", "1"]},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schema))
    values = {
        "dataset": {"name": "csv", "file": table(tmp_path / "a.csv", 0, 1), "schema": str(tmp_path / "s.yaml")},
        "partition": {"name": "iid", "clients": 3}, "model": {"name": "logistic"}, "rounds": 1,
    }  # fmt: skip
    export_run(run(load_config(values), tmp_path / "first"), tmp_path / "model", onnx=False)
    other = (tmp_path / "a.csv").read_text().replace("strong", "severe", 1)
    (tmp_path / "b.csv").write_text(other)
    values["dataset"] = {
        "name": "csv",
        "file": str(tmp_path / "b.csv"),
        "label": "died",
        "categorical": ["pain"],
    }
    with pytest.raises(DataError, match=r"column 'pain' holds 'severe' .* expected one of mild, strong"):
        build(load_config({**values, "initial_model": str(tmp_path / "model")}))
