"""Five hospitals shaped like UCI heart disease, as real processes: raw tables in, a model folder in each out."""

import csv
import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from tests.flower.deployment import PATIENCE, wait_for

pytest.importorskip("flwr")

from wardround import datasets
from wardround.datasets.schema import Schema
from wardround.metrics import auroc

COLUMNS = [
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
]  # fmt: skip
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va", "basel")


def write_hospital(path, name, seed, rows=90, wrong=None):
    """A file with the raw UCI columns; what is missing, and how, differs from hospital to hospital."""
    rng = np.random.default_rng(seed)
    header = [c for c in COLUMNS if not (name == "hungarian" and c in ("slope", "ca", "thal"))]
    lines = []
    for i in range(rows):
        sick = 0 if name == "basel" else int(rng.random() < 0.5) * int(rng.integers(1, 5))
        ill = sick > 0
        cells = {
            "age": 38 + 4 * (seed % 5) + int(rng.integers(0, 25)) + 4 * ill, "sex": int(rng.random() < 0.7),
            "cp": 4 if ill and rng.random() < 0.6 else int(rng.integers(1, 4)),
            "trestbps": "?" if i % 17 == 3 else int(rng.normal(132, 17)),
            "chol": 0 if name == "switzerland" else int(np.clip(rng.normal(245, 50), 120, 560)),
            "fbs": "?" if name == "switzerland" and i % 2 else int(rng.random() < 0.15),
            "restecg": int(rng.integers(0, 3)), "thalach": int(np.clip(rng.normal(150 - 15 * ill, 20), 70, 205)),
            "exang": int(rng.random() < (0.6 if ill else 0.2)), "oldpeak": round(float(rng.exponential(0.6 + ill)), 1),
            "slope": "?" if i % 3 == 0 else int(rng.integers(1, 4)),
            "ca": "?" if name != "cleveland" else int(rng.integers(0, 4)),
            "thal": "?" if name == "va" and i % 2 else int(rng.choice([3, 6, 7])),
            "num": sick if name in ("cleveland", "va") else int(ill),
        }  # fmt: skip
        if name == "cleveland":  # it writes 3.0 where others write 3
            cells = {key: f"{value:.1f}" if isinstance(value, int) else value for key, value in cells.items()}
        lines.append([cells[column] for column in header])
    if wrong is not None:
        lines[10][header.index("thal")] = wrong
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def write_schema(folder, files):
    """`wardround schema infer`, and what a person makes of it."""
    path = folder / "schema.yaml"
    command = [sys.executable, "-m", "wardround", "schema", "infer", *files, "--label", "num", "--out", path]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=PATIENCE)
    values = yaml.safe_load(path.read_text())
    values["label"] = {"name": "num", "classes": {"healthy": [0], "sick": [1, 2, 3, 4]}, "positive": "sick"}
    for column in values["columns"]:
        column["missing"] = True
        if column["name"] == "chol":
            column |= {"range": [50, 900], "missing_values": [0]}
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.slow
def test_five_hospitals_end_up_with_a_model_that_predicts_what_was_measured(deploy):
    fed = deploy(HOSPITALS, quorum=5, retries=1000, backoff_seconds=0.5, recheck_seconds=0.5)
    for number, name in enumerate(HOSPITALS):
        home = fed.folder / name
        home.mkdir()
        write_hospital(home / "heart.csv", name, number, wrong="9" if name == "va" else None)
    server_file = write_hospital(fed.folder / "server.csv", "cleveland", 9, rows=150)
    inferred = [fed.folder / name / "heart.csv" for name in HOSPITALS if name != "va"]
    fed.federation["schema"] = str(write_schema(fed.folder, inferred))
    fed.configure(
        name="heart",
        dataset={"name": "csv", "file": str(server_file)},
        model={"name": "mlp", "hidden": [8]},
        training={"lr": 0.01},
        aggregator={"name": "caac-guard"},
        rounds=3,
    )
    server = fed.serve()
    for name in HOSPITALS:
        fed.hospital(name, dataset={"name": "csv", "file": str(fed.folder / name / "heart.csv")})
        fed.join(name)

    # One hospital's data do not fit: both sides are told the column, the value and what was expected.
    reason = "column 'thal' holds '9'"

    def running():
        for name, process in fed.started.items():
            assert process.poll() is None, f"{name} ended:\n{fed.output(name)}"

    wait_for(lambda: reason in fed.output("va"), "the hospital to be told", also=running)
    assert "(row 11), expected one of 3, 6, 7" in fed.output("va")
    wait_for(lambda: reason in fed.output("serve"), "the server to be told", also=running)
    (refused,) = [line for line in fed.events() if line["event"] == "refused"]
    assert refused["client"] == "va"
    assert refused["reason"] == "its data do not fit: column 'thal' holds '9', expected one of 3, 6, 7"
    assert not fed.rounds()

    # It fixes its file and takes part, while the server runs.
    write_hospital(fed.folder / "va" / "heart.csv", "va", 3)
    assert server.wait(PATIENCE) == 0, fed.output("serve")
    assert {line["client"] for line in fed.run.clients()} == set(HOSPITALS)  # one of them has no sick patient
    assert len(fed.run.rounds()) == 3

    # Every hospital has the same model, signed by the server.
    (own,) = (fed.folder / ".cleveland" / "models").iterdir()
    folders = [fed.folder / f".{name}" / "models" / own.name for name in HOSPITALS]
    assert len({(folder / "manifest.json").read_bytes() for folder in folders}) == 1
    manifest = json.loads((own / "manifest.json").read_text())
    for name in HOSPITALS:
        assert fed.end(name, signal.SIGINT) == 130

    # What it predicts for raw rows is what the server's evaluation gave.
    schema = Schema.load(fed.folder / "schema.yaml")
    data = datasets.create("csv", file=server_file).load_as(schema, 0)
    with open(server_file, newline="") as file:
        header, *rows = list(csv.reader(file))
    raw = fed.folder / "test-rows.csv"
    with open(raw, "w", newline="") as file:
        csv.writer(file).writerows([header, *(rows[row] for row in data.raw.parts[2])])
    command = [sys.executable, "-m", "wardround", "predict", own, raw, "--authority", fed.keys.authority]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=PATIENCE)
    predicted = list(csv.DictReader(done.stdout.decode().splitlines()))
    shares = np.array([float(row["probability_sick"]) for row in predicted])
    truth = data.test.targets.numpy()
    measured = next(record for record in fed.run.rounds() if record.round == manifest["round"]).metrics
    loss = -np.mean(np.log(np.where(truth == 1, shares, 1 - shares)))
    assert measured["loss"] == pytest.approx(loss, abs=1e-4)
    assert not math.isnan(measured["auroc"])
    assert measured["auroc"] == pytest.approx(
        float(auroc(torch.tensor(shares), torch.tensor(truth > 0))), abs=1e-6
    )
