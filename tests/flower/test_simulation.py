"""The same run in Flower's own simulation."""

import dataclasses

import pytest

from wardround.errors import ConfigError
from wardround.flower.config import federation_from
from wardround.flower.simulation import simulate
from wardround.runs.config import load_config
from wardround.runs.runner import run

TEXT = """
name: simulated
dataset: {name: synthetic, samples: 800, features: 8}
partition: {name: dirichlet, clients: 6, alpha: 1.0}
model: {name: mlp, hidden: [8]}
training: {lr: 0.01}
aggregator: {name: caac}
attack: {name: sign-flip, fraction: 0.34, start: 3}
rounds: 10
federation: {poll_seconds: 0.1, deadline_seconds: 120, retries: 1}
"""


@pytest.mark.slow
def test_ten_rounds_through_ray_are_those_of_the_in_process_engine(tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    config = federation_from(TEXT)
    there = simulate(config, tmp_path / "flower")
    here = run(load_config(config.run.plain()), tmp_path / "in-process")
    assert there.summary().status == "finished"
    for one, other in zip(here.rounds(), there.rounds(), strict=True):
        assert one.metrics == pytest.approx(other.metrics, abs=1e-4)
    keys = ("round", "client", "byzantine", "num_samples", "flag", "status", "reason")
    assert [[line[key] for key in keys] for line in here.clients()] == [
        [line[key] for key in keys] for line in there.clients()
    ]


@pytest.mark.slow
def test_a_simulation_needs_data_to_deal_out(tmp_path):
    config = dataclasses.replace(federation_from(TEXT), has_partition=False)
    with pytest.raises(ConfigError, match="add dataset and partition"):
        simulate(config, tmp_path)
