"""What clients keep between rounds: counted, and refused before it fills the memory."""

import pytest
import torch

from wardround import aggregators, models
from wardround.errors import ConfigError
from wardround.federation.client_state import check_client_state, free_memory, kept_per_client, tensor_bytes
from wardround.federation.schedule import Schedule
from wardround.runs.config import load_config
from wardround.runs.runner import build
from wardround.training.base import TrainingParams
from wardround.updates import Layout

LAYOUT = Layout.of(models.create("mlp", hidden=(16,)).build((8,), 1))
MODEL_BYTES = 4 * LAYOUT.size
SCAFFOLD = TrainingParams(method="scaffold", optimizer="sgd")


@pytest.mark.parametrize(
    ("training", "rule", "rows"),
    [
        ({}, {"name": "caac"}, 0),
        ({}, {"name": "caac-guard"}, 0),
        pytest.param(
            {"method": "scaffold", "optimizer": "sgd"}, {"name": "median"}, 1, marks=pytest.mark.slow
        ),
        pytest.param(
            {"method": "scaffold", "optimizer": "sgd"}, {"name": "caac-guard"}, 2, marks=pytest.mark.slow
        ),
        ({"client_momentum": 0.9}, {"name": "median"}, 1),
        ({}, {"name": "foolsgold"}, 1),
        ({}, {"name": "fldetector"}, 1),
        ({"client_momentum": 0.9}, {"name": "median", "pre": [{"name": "momentum"}]}, 2),
    ],
)
def test_what_is_said_to_be_kept_is_what_a_run_keeps(training, rule, rows):
    """Counted in the states of two runs that differ in their number of clients alone."""

    def kept(clients):
        config = load_config(
            {
                "dataset": {"name": "synthetic", "samples": 400, "features": 8},
                "partition": {"name": "iid", "clients": clients},
                "model": {"name": "mlp", "hidden": [16]},
                "aggregator": rule,
                "training": {"lr": 0.01, **training},
                "rounds": 2,
            }
        )
        federation = build(config, workers=1)
        with federation.trainer:
            federation.step(1)
        state = federation.state_dict()
        own = kept_per_client(federation.training, federation.rule, federation.layout)
        kept = [state["clients"], state["rule"], state.get("client_controls")]
        return tensor_bytes(kept), sum(own.values())

    (few, each), (more, _) = kept(6), kept(10)
    assert each == rows * MODEL_BYTES
    small = (more - few) / 4 - each
    assert 0 <= small < 400, "profiles are a few numbers per client, whatever the model"


def test_more_than_fits_is_refused_before_the_first_round():
    schedule = Schedule(rounds=1000, participation=0.01)
    rule = aggregators.create("median")
    check_client_state(SCAFFOLD, rule, LAYOUT, schedule, 10_000, free=10_000 * MODEL_BYTES)
    match = (
        r"training.method scaffold: 10000 clients would keep .* each, .* together, and .* of memory are free"
    )
    with pytest.raises(ConfigError, match=match):
        check_client_state(SCAFFOLD, rule, LAYOUT, schedule, 10_000, free=10_000 * MODEL_BYTES - 1)


def test_only_clients_that_can_have_taken_part_count():
    schedule = Schedule(rounds=3, participation=0.01)
    check_client_state(
        SCAFFOLD, aggregators.create("median"), LAYOUT, schedule, 10_000, free=300 * MODEL_BYTES
    )


def test_a_simulation_asks_for_the_memory_that_is_free(monkeypatch):
    monkeypatch.setattr("wardround.federation.client_state.free_memory", lambda: 1000)
    config = {
        "dataset": {"name": "synthetic", "samples": 200},
        "partition": {"name": "iid", "clients": 5},
        "rounds": 1,
        "aggregator": {"name": "foolsgold"},
    }
    with pytest.raises(ConfigError, match="aggregator 'foolsgold': 5 clients would keep"):
        build(load_config(config), workers=1)


def test_free_memory_is_a_number_of_bytes_where_the_platform_tells():
    assert free_memory() is None or free_memory() > 2**20


def test_bytes_of_nested_states():
    assert tensor_bytes({"a": [torch.zeros(3), (torch.zeros(2).double(),)], "b": None}) == 12 + 16
