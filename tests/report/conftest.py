import pytest

from wardround.analysis import load_runs
from wardround.experiments import expand, run

MATRIX = {
    "base": {
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 5,
    },
    "runs": [{"attack.name": "none"}, {"attack": {"name": "sign-flip", "fraction": 0.34, "start": 3}}],
    "axes": {"aggregator.name": ["fedavg", "caac"]},
    "seeds": [0, 1],
}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """Two rules, clean and attacked, two seeds: really run."""
    out = tmp_path_factory.mktemp("runs")
    for config in expand(MATRIX):
        run(config, out)
    return out


@pytest.fixture(scope="session")
def runs(run_folder):
    return load_runs([run_folder])
