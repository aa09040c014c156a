"""Exporting a run: what the folder holds, which round, and where it refuses to write."""

import json

import numpy as np
import pytest
import torch

from wardround.errors import ConfigError
from wardround.experiments import load_config, run
from wardround.federation.evaluation import metrics_of
from wardround.runs import runner
from wardround.runs.best_round import BEST
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.inputs import INPUTS
from wardround.runs.export.manifest import FILES, MANIFEST
from wardround.runs.export.writer import export_run
from wardround.runs.folder import RunFolder
from wardround.runs.runner import load_and_partition


def copy_of(folder, tmp_path, change):
    """The run folder with another checkpoint."""
    import shutil

    copy = RunFolder(tmp_path / folder.path.name)
    shutil.copytree(folder.path, copy.path)
    state = copy.read_checkpoint()
    change(state)
    copy.write_checkpoint(state)
    return copy


@pytest.mark.slow
def test_the_folder_holds_what_the_contract_says(finished_run, tmp_path):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    out = tmp_path / "deep" / "model"
    manifest = export_run(finished_run, out)
    assert {path.name for path in out.iterdir()} == {MANIFEST, *FILES}
    assert set(manifest.files) == set(FILES)
    assert manifest.round == finished_run.summary().best["round"]
    assert manifest.chosen == "best"


def test_the_exported_model_scores_what_the_run_recorded(finished_run, tmp_path):
    dataset, _ = load_and_partition(load_config(finished_run.config()))
    records = {record.round: record for record in finished_run.rounds()}
    for choice in ("best", "last"):
        out = tmp_path / choice
        manifest = export_run(finished_run, out, choice, onnx=False)
        shares = ExportedModel.load(out).predict(dataset.test.inputs).double().clamp(1e-12, 1 - 1e-12)
        measured = metrics_of(torch.logit(shares), dataset.test.targets, dataset.task)
        recorded = records[manifest.round].metrics
        assert measured["auroc"] == pytest.approx(recorded["auroc"], abs=1e-4)
        assert measured["loss"] == pytest.approx(recorded["loss"], abs=1e-4)
    assert manifest.round == 4


def test_best_and_last_are_different_weights_where_they_are_different_rounds(finished_run, tmp_path):
    def pretend(state):
        state[BEST] = {"round": 2, "auroc": 0.99, "weights": state["federation"]["weights"] + 1}

    folder = copy_of(finished_run, tmp_path, pretend)
    best = export_run(folder, tmp_path / "best", "best", onnx=False)
    last = export_run(folder, tmp_path / "last", "last", onnx=False)
    assert (best.round, last.round) == (2, 4)
    difference = ExportedModel.load(tmp_path / "best").weights - ExportedModel.load(tmp_path / "last").weights
    assert np.allclose(difference, 1, atol=1e-5)


def test_a_run_that_kept_no_best_round_gives_its_last(finished_run, tmp_path):
    """As those that were finished before best rounds and inputs were kept."""
    folder = copy_of(finished_run, tmp_path, lambda state: [state.pop(key) for key in (BEST, INPUTS)])
    with pytest.raises(ConfigError, match=r"no weights of its best round .* use --round last"):
        export_run(folder, tmp_path / "best", "best", onnx=False)
    assert not (tmp_path / "best").exists()
    manifest = export_run(folder, tmp_path / "model", onnx=False)
    assert (manifest.round, manifest.chosen) == (4, "last")
    model = ExportedModel.load(tmp_path / "model")
    assert model.inputs.preprocessing is None, "what is fitted today need not be what was fitted then"
    assert torch.equal(model.weights, folder.read_checkpoint()["federation"]["weights"])


def test_weights_of_another_model_are_refused(finished_run, tmp_path):
    def cut(state):
        state[BEST]["weights"] = state[BEST]["weights"][:-1]

    with pytest.raises(ConfigError, match="the data or the model's code have changed"):
        export_run(copy_of(finished_run, tmp_path, cut), tmp_path / "model", onnx=False)


def test_a_run_without_a_finished_round_has_no_model(make_run, tmp_path):
    with pytest.raises(ConfigError, match="no round is finished"):
        export_run(make_run(), tmp_path / "model", onnx=False)


def test_a_folder_that_is_not_a_model_is_never_replaced(finished_run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("three years of work")
    for force in (False, True):
        with pytest.raises(ConfigError, match="holds something else than a model"):
            export_run(finished_run, out, onnx=False, force=force)
    assert (out / "thesis.txt").read_text() == "three years of work"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        export_run(finished_run, tmp_path / "file", onnx=False)


def test_a_model_is_replaced_only_by_force(finished_run, tmp_path):
    out = tmp_path / "model"
    export_run(finished_run, out, "last", onnx=False)
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(ConfigError, match="--force replaces it"):
        export_run(finished_run, out, onnx=False)
    assert (out / MANIFEST).read_bytes() == before
    export_run(finished_run, out, "last", onnx=False, force=True)
    assert (out / MANIFEST).read_bytes() == before, "the same run gives the same bytes"


def test_batch_norm_that_became_group_norm_is_rebuilt(tmp_path):
    pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
    from wardround.runs.export.manifest import Manifest
    from wardround.runs.export.network import network_of

    values = json.dumps(
        {
            "run": "r", "round": 1, "chosen": "last", "model": {"name": "medical-cnn"}, "group_norm": True,
            "task": "binary", "class_names": ["a", "b"], "input_shape": [1, 16, 16], "feature_names": [],
            "thresholds": {"b": 0.5}, "parameters": 1, "weights": "", "wardround": "0", "format": 1,
            "files": dict.fromkeys(("model.safetensors", "preprocessing.json", "schema.json"), ""),
        }
    )  # fmt: skip
    network = network_of(Manifest.from_bytes(values.encode()))
    kinds = {type(layer).__name__ for layer in network.modules()}
    assert "GroupNorm" in kinds
    assert not any("BatchNorm" in kind for kind in kinds)


def test_fedbn_over_a_network_has_no_whole_model(finished_run, tmp_path, monkeypatch):
    """The server of a federation does not know the BatchNorm that stays with the hospitals."""
    from wardround.errors import WardroundError
    from wardround.runs.export import source

    folder = copy_of(finished_run, tmp_path, lambda state: state.pop(BEST))
    config = {**folder.config(), "aggregator": {"name": "fedbn"}}
    folder.write_config(config)
    monkeypatch.setattr(
        source.Layout, "batch_norm_mask", property(lambda layout: torch.ones(layout.size, dtype=torch.bool))
    )
    with pytest.raises(WardroundError, match="BatchNorm stays with the hospitals"):
        export_run(folder, tmp_path / "model", onnx=False)


def test_a_run_can_be_exported_while_it_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SIMULATION_SECONDS", 0.0)  # a checkpoint after every round
    folders = []

    def export_after_two(record):
        if record.round == 2:
            place = next((tmp_path / "runs").iterdir())
            folders.append(export_run(RunFolder(place), tmp_path / "model", "last", onnx=False))

    run(load_config(tiny), tmp_path / "runs", export_after_two)
    assert folders[0].round == 2
    assert "The run is not finished" in (tmp_path / "model" / "MODEL_CARD.md").read_text()
