"""Federations over hospitals' own tables, in one process: the same model as a simulation, refusals, rejoining."""

import json

import numpy as np
import pytest
import torch
import yaml
from flwr.app import Context, RecordDict
from tests.flower.conftest import Clock

from wardround.datasets.preprocessing import Preprocessing
from wardround.errors import ConfigError, WardroundError
from wardround.flower.client_app import app
from wardround.flower.config import federation_from
from wardround.flower.hospital.memory import read_log
from wardround.flower.inline_grid import InlineGrid
from wardround.flower.server.membership import QuorumMissed
from wardround.flower.server.run import run_federation
from wardround.runs.config import load_config
from wardround.runs.runner import run

NAMES = ("brno", "graz", "linz", "ulm")
SCHEMA = {
    "columns": [
        {"name": "age", "range": [0, 120]},
        {"name": "chol", "missing_values": [0]},
        {"name": "cp", "type": "category", "levels": ["1", "2", "3"]},
        {"name": "ca", "type": "category", "levels": ["0", "1"], "required": False},
    ],
    "label": {"name": "num", "classes": {"healthy": [0], "sick": [1, 2]}, "positive": "sick"},
}
WORK = {
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.01},
    "rounds": 3,
    "engine": "sequential",
}


def write_table(path, seed, rows=60, sick=True, extra=()):
    """A hospital's file: levels, scales and columns differ from one to the next."""
    rng = np.random.default_rng(seed)
    header = ["age", "chol", "cp", *(["ca"] if seed % 2 else []), "num"]
    lines = [",".join(header)]
    for i in range(rows):
        ill = int(rng.integers(0, 3)) if sick else 0
        cells = [
            40 + 5 * seed + rng.integers(0, 20) + 3 * ill,
            0 if i % 9 == 0 else 180 + rng.integers(0, 99),
        ]
        cells += [
            f"{1 + int(rng.integers(0, 2)) + (seed > 1)}.0",
            *([int(rng.integers(0, 2))] if seed % 2 else []),
            ill,
        ]
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join([*lines, *extra]) + "\n")
    return path


class Tables:
    """Hospitals with files, and a server without data of its own."""

    def __init__(self, folder, schema=SCHEMA, names=NAMES, own=None, **values):
        self.folder, self.schema, self.names = folder, schema, names
        self.files = {name: write_table(folder / f"{name}.csv", i) for i, name in enumerate(names)}
        self.policies: dict[str, dict] = {}
        self.own = own or {}
        self.values = {**WORK, **values}
        self.clock = Clock()

    def grid(self):
        grid = InlineGrid(app, len(self.names))
        for number, (name, path) in enumerate(self.files.items()):
            config = {
                "name": name, "dataset": {"name": "csv", "file": str(path), **self.own}, "engine": "sequential",
                "state": str(self.folder / f"state-{name}"), "policy": self.policies.get(name, {}),
            }  # fmt: skip
            file = self.folder / f"{name}.yaml"
            file.write_text(yaml.safe_dump(config))
            node = {"hospital": str(file)}
            grid.contexts[number + 2] = Context(1, number + 2, node, RecordDict(), {})
        return grid

    def federation(self, **changes):
        section = {
            "identity": "name",
            "poll_seconds": 1,
            "deadline_seconds": 30,
            "onnx": False,  # torch's exporter takes a second
            "clients": len(self.names),
            **changes,
        }
        if self.schema is not None:
            section["schema"] = self.schema
        return federation_from({**self.values, "federation": section})

    def federate(self, listen=None, **changes):
        return run_federation(
            self.federation(**changes),
            self.grid(),
            self.folder / "fed",
            listen,
            self.clock.now,
            self.clock.sleep,
        )

    def simulate(self):
        own = {"schema": self.schema} if self.schema is not None else self.own
        data = {"name": "csv", "files": {name: str(path) for name, path in self.files.items()}, **own}
        config = load_config({**self.values, "dataset": data, "partition": {"name": "natural"}})
        return run(config, self.folder / "sim")

    def audit(self, folder, event):
        lines = map(json.loads, (folder.path / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]


def weights(folder):
    return folder.read_checkpoint()["federation"]["weights"]


def shape(folder):
    return folder.read_checkpoint()["federation"]["clients"]["roster"]["shape"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["federation", "local", "none"])
def test_a_federation_and_a_simulation_give_the_same_model(tmp_path, scale):
    tables = Tables(tmp_path, preprocessing={"scale": scale, "impute": "mean"})
    federated, simulated = tables.federate(), tables.simulate()
    assert torch.equal(weights(federated), weights(simulated))
    assert [line["num_samples"] for line in federated.clients()] == [
        line["num_samples"] for line in simulated.clients()
    ]


@pytest.mark.slow
def test_the_same_without_a_schema(tmp_path):
    own = {"label": "num", "categorical": ["cp"]}
    tables = Tables(tmp_path, schema=None, own=own)
    for path in tables.files.values():  # a schema could join the classes 1 and 2, nothing else can
        path.write_text(path.read_text().replace(",2\n", ",1\n"))
    federated, simulated = tables.federate(), tables.simulate()
    assert torch.equal(weights(federated), weights(simulated))
    agreed = shape(federated)["feature_names"]
    assert {"cp=1", "cp=2", "cp=3"} <= set(agreed)  # no hospital has all three
    joined = [line["client"] for line in tables.audit(federated, "joined")]
    assert sorted(joined) == list(NAMES)  # once each, though they were asked twice


def test_a_hospital_without_sick_patients_takes_part(tmp_path):
    tables = Tables(tmp_path)
    write_table(tables.files["ulm"], 3, sick=False)
    federated, simulated = tables.federate(), tables.simulate()
    assert {line["client"] for line in federated.clients()} == set(NAMES)
    assert torch.equal(weights(federated), weights(simulated))


def test_what_does_not_fit_is_refused_on_both_sides(tmp_path, capsys):
    tables = Tables(tmp_path)
    write_table(tables.files["linz"], 2, extra=["50,200,9,1"])
    federated = tables.federate()
    reason = "column 'cp' holds '9', expected one of 1, 2, 3"
    refused = tables.audit(federated, "refused")
    assert [(line["client"], line["reason"]) for line in refused] == [
        ("linz", f"its data do not fit: {reason}")
    ]
    assert "column 'cp' holds '9' (row 61)" in capsys.readouterr().out
    log = read_log(tmp_path / "state-linz")
    assert "column 'cp' holds '9' (row 61)" in log[0]["refused"]
    assert {line["client"] for line in federated.clients()} == set(NAMES) - {"linz"}


def test_a_value_stays_at_the_hospital_if_its_policy_says_so(tmp_path, capsys):
    tables = Tables(tmp_path)
    tables.policies["linz"] = {"report_values": False}
    write_table(tables.files["linz"], 2, extra=["50,200,secret,1"])
    federated = tables.federate()
    (refused,) = tables.audit(federated, "refused")
    assert "column 'cp' holds what does not fit, expected one of 1, 2, 3" in refused["reason"]
    assert "secret" not in (federated.path / "audit.jsonl").read_text()
    assert "secret" in capsys.readouterr().out


@pytest.mark.slow
def test_a_hospital_that_fixed_its_data_rejoins_while_the_server_runs(tmp_path):
    tables = Tables(tmp_path, rounds=4)
    write_table(tables.files["linz"], 2, extra=["50,200,9,1"])

    def fix(record):
        if record.round == 2:
            write_table(tables.files["linz"], 2, rows=61)

    federated = tables.federate(fix, recheck_seconds=0)
    rounds = {
        line["round"] for line in federated.clients() if line["client"] == "linz" and line["status"] == "ok"
    }
    assert rounds == {3, 4}
    assert len(tables.audit(federated, "refused")) == 1  # asked in every round, told once
    assert [line["client"] for line in tables.audit(federated, "joined")][-1] == "linz"


@pytest.mark.slow
def test_statistics_are_logged_and_can_be_kept(tmp_path):
    tables = Tables(tmp_path)
    tables.policies = {"brno": {"report_statistics": False}, "graz": {"dp": {}, "report_loss": True}}
    federated = tables.federate()
    (agreed,) = tables.audit(federated, "preprocessing")
    assert agreed["clients"] == [
        "linz",
        "ulm",
    ]  # graz demands differential privacy, which does not cover them
    assert agreed["sha256"] == Preprocessing.from_dict(shape(federated)["preprocessing"]).hash
    sent = [line for line in read_log(tmp_path / "state-ulm") if line["kind"] == "hello"]
    assert sent[0]["statistics"] == ["age", "ca", "chol", "cp"]
    assert sent[0]["bytes"] > 0
    assert not [line for line in read_log(tmp_path / "state-brno") if line["kind"] == "hello"]


@pytest.mark.slow
def test_nobody_sends_statistics(tmp_path):
    tables = Tables(tmp_path)
    tables.policies = {name: {"report_statistics": False} for name in NAMES}
    with pytest.raises(
        WardroundError, match=r"no hospital sent statistics .* set preprocessing.scale to local"
    ):
        tables.federate()
    other = Tables(tmp_path, preprocessing={"scale": "local"})
    other.policies = tables.policies
    assert len(other.federate().rounds()) == 3


@pytest.mark.slow
def test_a_liar_moves_no_scale_beyond_the_others(tmp_path, monkeypatch):
    honest = Tables(tmp_path)
    expected = Preprocessing.from_dict(shape(honest.federate())["preprocessing"]).scaling
    from wardround.flower.hospital import data

    truth = data.describe_table

    def lie(table, rows, names, floor):
        said = truth(table, rows, names, floor)
        if table.numeric["age"].min() < 45:  # only brno is so young
            age = said.columns["age"]
            enormous = type(age)(2**50, 0.0, 1e15, 1e15, {0.5: 1e15})
            said = type(said)(2**50, said.classes, {**said.columns, "age": enormous})
        return said

    monkeypatch.setattr(data, "describe_table", lie)
    (tmp_path / "lied").mkdir()
    lied = Preprocessing.from_dict(shape(Tables(tmp_path / "lied").federate())["preprocessing"]).scaling
    assert lied["age"] != expected["age"]  # the lie was told
    assert 40 < lied["age"].centre < 90
    assert lied["age"].scale < 20


@pytest.mark.slow
def test_preprocessing_survives_a_restart_of_the_server(tmp_path):
    tables = Tables(tmp_path, rounds=4)

    class Stop(Exception):
        pass

    def stop(record):
        if record.round == 2:
            raise Stop

    with pytest.raises(Stop):
        tables.federate(stop)
    for name in NAMES:  # what hospitals have now does not change what was agreed on
        tables.policies[name] = {"report_statistics": False}
    resumed = tables.federate()
    (tmp_path / "whole").mkdir()
    whole = Tables(tmp_path / "whole", rounds=4).federate()
    assert torch.equal(weights(resumed), weights(whole))
    assert len(tables.audit(resumed, "preprocessing")) == 1


def test_a_resumed_run_keeps_its_schema(tmp_path):
    tables = Tables(tmp_path, rounds=4)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.federate(stop)
    tables.schema = {**SCHEMA, "columns": SCHEMA["columns"][:-1]}
    with pytest.raises(ConfigError, match="another than this run began with"):
        tables.federate()


@pytest.mark.slow
def test_the_server_measures_on_a_table_of_its_own(tmp_path):
    own = write_table(tmp_path / "server.csv", 5, rows=80)
    tables = Tables(tmp_path, dataset={"name": "csv", "file": str(own)})
    federated = tables.federate()
    assert federated.rounds()[-1].metrics["auroc"] > 0
    assert {line["client"] for line in federated.clients()} == set(NAMES)


@pytest.mark.slow
def test_hospitals_without_a_label_wait_for_a_schema(tmp_path):
    tables = Tables(tmp_path, schema=None)
    with pytest.raises(QuorumMissed):
        tables.federate(retries=0)
    folder = tables.federation().find_folder(tmp_path / "fed")
    reasons = {line["reason"] for line in tables.audit(folder, "not-introduced")}
    assert all("has no label" in reason and "gives no schema" in reason for reason in reasons)


@pytest.mark.parametrize("written", [True, False])
def test_survival_in_a_federation_is_that_of_a_simulation(tmp_path, written):
    """With a schema, and with what the hospitals' own options and statistics agree on."""
    schema = {
        "columns": [{"name": "age"}, {"name": "chol"}],
        "label": {"name": "died", "classes": ["0", "1"], "time": "days"},
    }
    own = {} if written else {"time": "days", "event": "died"}
    tables = Tables(tmp_path, schema=schema if written else None, own=own)
    for number, path in enumerate(tables.files.values()):
        rng = np.random.default_rng(number)
        rows = [f"{40 + i % 30},{180 + i},{rng.integers(0, 2)},{rng.exponential(100):.1f}" for i in range(80)]
        path.write_text("\n".join(["age,chol,died,days", *rows]) + "\n")
    federated, simulated = tables.federate(), tables.simulate()
    assert torch.equal(weights(federated), weights(simulated))
    assert (shape(federated)["task"], shape(federated)["feature_names"]) == ("survival", ["age", "chol"])
    last = federated.rounds()[-1]
    assert 0 < last.metrics["c_index"] < 1
    assert set(last.per_client) == set(NAMES)
    own = simulated.rounds()[-1].per_client["ulm"]["c_index"]
    assert last.per_client["ulm"]["c_index"] == pytest.approx(own, abs=1e-4), "as a hospital rounds it"
    assert last.metrics.get("auroc") is None
    assert last.details.per_client_reasons["ulm"]["brier"].kind == "not-defined"
