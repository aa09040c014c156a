"""`wardround export` and `wardround predict`, as a user calls them."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import yaml

from wardround.runs.runner import load_and_partition

SCHEMA = {
    "columns": [
        {"name": "age", "range": [0, 120]},
        {"name": "pain", "type": "category", "levels": ["atypical", "typical"], "missing": False},
        {"name": "pressure"},
    ],
    "label": {"name": "outcome", "classes": {"healthy": ["0"], "sick": ["1", "2"]}, "positive": "sick"},
}


def rows_of(count, seed):
    random = np.random.default_rng(seed)
    age = random.integers(30, 90, count)
    pain = random.choice(["atypical", "typical"], count)
    pressure = [str(value) if value > 95 else "" for value in random.normal(120, 20, count).round(1)]
    sick = (age + 20 * (pain == "typical") + random.normal(0, 8, count)) > 75
    outcome = [str(int(one) * (1 + index % 2)) for index, one in enumerate(sick)]
    return list(zip(map(str, range(count)), map(str, age), pain, pressure, outcome, strict=True))


def write(path, rows, header=("id", "age", "pain", "pressure", "outcome")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two hospitals' raw tables, and a finished run on them."""
    from wardround.experiments import load_config, run

    folder = tmp_path_factory.mktemp("study")
    files = {name: str(write(folder / f"{name}.csv", rows_of(150, seed))) for seed, name in enumerate("ab")}
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    config = load_config(
        {
            "name": "study",
            "dataset": {"name": "csv", "files": files, "schema": str(folder / "schema.yaml")},
            "partition": {"name": "natural"},
            "model": {"name": "mlp", "hidden": [4]},
            "training": {"lr": 0.02},
            "rounds": 3,
        }
    )
    return folder, config, run(config, folder / "runs")


@pytest.fixture
def model(study, here, tmp_path):
    done = here("export", study[2].path, "--out", tmp_path / "model", "--no-onnx", "--round", "last")
    assert done.returncode == 0, done.stderr
    return tmp_path / "model"


def test_predict_gives_what_the_runs_evaluation_gave(study, here, model, tmp_path):
    """The raw rows of the test split get the accuracy and AUROC that the run recorded."""
    from sklearn import metrics

    _, config, run_folder = study
    dataset, _ = load_and_partition(config)
    raw, part = dataset.raw, dataset.raw.parts[2]
    chosen = raw.table.select(part)
    rows = [
        ["" if np.isnan(value) else repr(float(value)) for value in chosen.numeric["age"]],
        list(chosen.categorical["pain"]),
        ["" if np.isnan(value) else repr(float(value)) for value in chosen.numeric["pressure"]],
    ]
    table = write(tmp_path / "t.csv", list(zip(*rows, strict=True)), ("age", "pain", "pressure"))
    done = here("predict", model, table)
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(lines[0]) == ["row", "probability_sick", "class"]
    shares = np.array([float(line["probability_sick"]) for line in lines])
    said = np.array([line["class"] == "sick" for line in lines])
    truth = dataset.test.targets.numpy().astype(bool)
    recorded = run_folder.rounds()[-1].metrics
    assert metrics.roc_auc_score(truth, shares) == pytest.approx(recorded["auroc"], abs=1e-6)
    assert metrics.log_loss(truth, shares) == pytest.approx(recorded["loss"], abs=1e-4)
    threshold = json.loads((model / "manifest.json").read_text())["thresholds"]["sick"]
    assert threshold == pytest.approx(recorded["threshold"])
    assert metrics.accuracy_score(truth, said) == pytest.approx(recorded["accuracy"])
    assert np.array_equal(said, shares > threshold)


def test_it_works_without_the_run_folder_and_keeps_columns(study, here, model, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.move(model, moved)
    done = here("predict", moved, study[0] / "a.csv", "--keep", "id", "--out", tmp_path / "p.csv")
    assert done.returncode == 0
    assert done.stdout == ""
    lines = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [line["id"] for line in lines] == [str(number) for number in range(150)]
    assert {line["class"] for line in lines} == {"healthy", "sick"}


def test_columns_that_are_not_used_are_named(study, here, model):
    done = here("predict", model, study[0] / "a.csv")
    assert "columns that the model does not use: id" in done.stderr
    assert "outcome" not in done.stderr, "the label is known"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: [row[0], "200", *row[2:]], "column 'age' holds '200' (row 1), expected a number from 0 to 120"),
        (lambda row: [row[0], "old", *row[2:]], "column 'age' holds 'old' (row 1), expected a number from 0 to 120"),
        (lambda row: [*row[:2], "severe", *row[3:]],
         "column 'pain' holds 'severe' (row 1), expected one of atypical, typical, never empty"),
        (lambda row: [*row[:2], "", *row[3:]], "column 'pain' is empty (row 1), expected one of atypical, typical"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_column_value_and_expectation(
    here, model, tmp_path, change, message
):
    rows = rows_of(5, 9)
    table = write(tmp_path / "t.csv", [change(list(rows[0])), *rows[1:]])
    done = here("predict", model, table, "--out", tmp_path / "p.csv")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_a_missing_column_is_refused(here, model, tmp_path):
    table = write(tmp_path / "t.csv", [["50", "atypical"]], ("agee", "pain"))
    done = here("predict", model, table)
    assert done.returncode == 2
    assert "column 'age' is not there, expected a number from 0 to 120; did you mean 'agee'?" in done.stderr


def test_a_changed_model_is_refused(study, here, model):
    (model / "preprocessing.json").write_text((model / "preprocessing.json").read_text().replace("1", "2", 1))
    done = here("predict", model, study[0] / "a.csv")
    assert done.returncode == 2
    assert "preprocessing.json is not the file that was exported" in done.stderr


def test_a_signature_is_made_and_asked_for(study, here, tmp_path):
    certificates = pytest.importorskip("wardround.flower.certificates")
    certificates.make_server_certificate(tmp_path / "certs", ["127.0.0.1"])
    certificates.make_server_certificate(tmp_path / "others", ["127.0.0.1"])
    keys, others = certificates.KeyFiles(tmp_path / "certs"), certificates.KeyFiles(tmp_path / "others")
    out = tmp_path / "signed"
    options = ("--key", keys.server_key, "--certificate", keys.server)
    assert here("export", study[2].path, "--out", out, "--no-onnx", *options).returncode == 0
    table = study[0] / "a.csv"
    assert here("predict", out, table, "--authority", keys.authority).returncode == 0
    refused = here("predict", out, table, "--authority", others.authority)
    assert refused.returncode == 2
    assert "is not issued by" in refused.stderr
    (out / "signature.json").unlink()
    refused = here("predict", out, table, "--authority", keys.authority)
    assert "the model has no signature" in refused.stderr
    alone = here("export", study[2].path, "--out", tmp_path / "x", "--key", keys.server_key)
    assert alone.returncode == 2
    assert "--key and --certificate belong together" in alone.stderr


def test_export_says_which_round_and_where(study, here, tmp_path):
    done = here("export", study[2].path, "--out", tmp_path / "m", "--no-onnx", "--json")
    values = json.loads(done.stdout)
    assert values["round"] == study[2].summary().best["round"]
    assert values["chosen"] == "best"
    again = here("export", study[2].path, "--out", tmp_path / "m", "--no-onnx")
    assert again.returncode == 2
    assert "--force replaces it" in again.stderr
    last = here("export", study[2].path, "--out", tmp_path / "m", "--no-onnx", "--round", "last", "--force")
    assert last.stdout.startswith("round 3 (the last one)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "nowhere"), "not a run folder"),
        (("predict", "nowhere", "t.csv"), "not an exported model"),
    ],
)
def test_what_is_not_there_is_one_line(here, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = here(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
