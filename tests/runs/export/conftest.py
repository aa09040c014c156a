"""Finished runs to export from, made once."""

import pytest

from wardround.experiments import load_config, run

TINY = {
    "name": "tiny",
    "dataset": {"name": "icu"},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.01, "batch_size": 256},
    "aggregator": {"name": "caac"},
    "rounds": 4,
}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a small run on real rows."""
    return run(load_config(TINY), tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def model_folder(finished_run, tmp_path_factory):
    """Its model, without ONNX."""
    from wardround.runs.export.writer import export_run

    out = tmp_path_factory.mktemp("exported") / "model"
    export_run(finished_run, out, onnx=False)
    return out
