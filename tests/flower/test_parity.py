"""The same configuration, in process and through messages: the same metrics."""

import pytest

from wardround.runs.config import load_config
from wardround.runs.runner import run

ATTACKS = {"clean": {"name": "none"}, "attacked": {"name": "sign-flip", "fraction": 0.3, "start": 3}}
DATA = {"dataset": {"name": "synthetic", "samples": 800, "features": 8}}
TOLERANCE = 1e-4


def assert_same_metrics(one, other, rounds):
    assert len(one) == len(other) == rounds
    for here, there in zip(one, other, strict=True):
        assert here.metrics == pytest.approx(there.metrics, abs=TOLERANCE)
        assert here.validation == pytest.approx(there.validation, abs=TOLERANCE)


def compare(town, tmp_path, **values):
    federation = town(**values)
    here = run(load_config(federation.config.run.plain()), tmp_path / "in-process")
    there = federation.run()
    assert_same_metrics(here.rounds(), there.rounds(), federation.config.run.rounds)
    told = ("round", "client", "byzantine", "attacking", "num_samples", "flag", "status", "reason")
    assert [{key: line[key] for key in told} for line in here.clients()] == [
        {key: line[key] for key in told} for line in there.clients()
    ]
    return here, there


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", ["fedavg", "caac", "dos", "caac-guard"])
def test_ten_rounds_are_the_same(town, tmp_path, rule, attack):
    here, there = compare(
        town, tmp_path, rounds=10, aggregator={"name": rule}, attack=ATTACKS[attack],
        partition={"name": "dirichlet", "clients": 8, "alpha": 1.0}, **DATA,
    )  # fmt: skip
    assert here.rounds()[-1].per_client.keys() == there.rounds()[-1].per_client.keys()
    detection = [folder.summary().detection for folder in (here, there)]
    assert detection[0] == detection[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"participation": 0.6, "aggregator": {"name": "caac"}},
        {"aggregator": {"name": "fltrust"}},
        {"aggregator": {"name": "fedprox"}, "server_lr": 0.5, "training": {"lr": 0.01, "schedule": "cosine"}},
        {"attack": {"name": "label-flip", "fraction": 0.4, "start": 2}},
        {"attack": {"name": "profile-aware", "fraction": 0.4, "start": 2}, "aggregator": {"name": "caac"}},
        {"privacy": {"dp": {"epsilon": 8.0, "clip": 1.0}}},
    ],
    ids=["sampling", "root-data", "fedprox", "label-flip", "profile-aware", "dp"],
)
def test_other_settings_are_the_same(town, tmp_path, values):
    here, there = compare(town, tmp_path, **values)
    assert here.rounds()[-1].privacy == there.rounds()[-1].privacy


@pytest.mark.parametrize("length", [{"steps": 4}, {"epochs": 1}])
def test_control_variates_are_the_same(town, tmp_path, length):
    """SCAFFOLD, with clients that are not asked every round."""
    training = {"method": "scaffold", "optimizer": "sgd", "lr": 0.05, **length}
    here, _ = compare(
        town, tmp_path, rounds=4, training=training, participation=0.6,
        partition={"name": "dirichlet", "clients": 5, "alpha": 1.0}, **DATA,
    )  # fmt: skip
    plain = run(
        load_config({**here.config(), "training": {**training, "method": "plain"}}), tmp_path / "plain"
    )
    assert plain.rounds()[-1].metrics["loss"] != pytest.approx(here.rounds()[-1].metrics["loss"], abs=1e-5)


def test_control_variates_of_split_updates_are_the_same(town, tmp_path):
    """SCAFFOLD with caac-guard: hospitals send parts without the correction, and the server adds it."""
    training = {"method": "scaffold", "optimizer": "sgd", "lr": 0.05, "steps": 4}
    here, _ = compare(
        town, tmp_path, rounds=3, training=training, participation=0.6, aggregator={"name": "caac-guard"},
        partition={"name": "dirichlet", "clients": 5, "alpha": 1.0}, **DATA,
    )  # fmt: skip
    assert here.read_checkpoint()["federation"]["client_controls"]


def test_hospitals_of_a_simulation_drift_as_clients_do(town, tmp_path):
    drift = {
        "clients": ["hospital-01", "hospital-02"],
        "feature_shift": 3.0,
        "label_shift": 0.5,
        "start": 1,
        "ramp": 2,
    }
    here, _ = compare(town, tmp_path, rounds=4, drift=drift, partition={"name": "iid", "clients": 5}, **DATA)
    still = run(load_config({**here.config(), "drift": None}), tmp_path / "still")
    drifted = here.rounds()[-1].metrics["loss"]
    assert still.rounds()[-1].metrics["loss"] != pytest.approx(drifted, abs=1e-6)
