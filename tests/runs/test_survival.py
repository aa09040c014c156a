"""A survival task from the table to the report: every part of the product, on one small table."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.test_survival import plain_c_index

from wardround import datasets
from wardround.analysis import analyze, load_runs
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.datasets.schema_inference import infer_schema
from wardround.datasets.table_check import check_table
from wardround.datasets.table_check_text import in_full
from wardround.errors import ConfigError, DataError, ParameterError
from wardround.experiments import expand, load_config, run
from wardround.report.contents import collect
from wardround.report.page import write_page
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.writer import export_run
from wardround.runs.runner import load_and_partition

SITES = ("a", "b", "c")


def write_patients(path, rows=240, sites=SITES, seed=0):
    """Patients whose risk rises with age and stage; a third is censored."""
    draw = np.random.default_rng(seed)
    lines = ["site,age,stage,months,status"]
    for row in range(rows):
        age, stage = draw.integers(40, 80), draw.integers(1, 5)
        months = draw.exponential(60 * np.exp(-0.05 * (age - 60) - 0.7 * (stage - 2)))
        lost = draw.exponential(70)
        status = "died" if months <= lost else "alive"
        lines.append(f"{sites[row % len(sites)]},{age},{stage},{min(months, lost):.1f},{status}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def table(tmp_path):
    return write_patients(tmp_path / "patients.csv")


@pytest.fixture
def values(table):
    return {
        "name": "survival",
        "dataset": {"name": "csv", "file": str(table), "time": "months", "event": "status", "client": "site"},
        "partition": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"lr": 0.05, "batch_size": 16},
        "rounds": 8,
    }


def test_the_table_becomes_signed_times(values):
    data, _ = load_and_partition(load_config(values))
    assert (data.task.value, data.outputs) == ("survival", 1)
    assert data.class_names == ("alive", "died")
    assert data.feature_names == ("age", "stage")
    targets = torch.cat([data.train.targets, data.validation.targets, data.test.targets])
    rows = [line.split(",") for line in Path(values["dataset"]["file"]).read_text().split()[1:]]
    expected = sorted(float(row[3]) * (1 if row[4] == "died" else -1) for row in rows)
    assert sorted(targets.tolist()) == expected


def test_a_run_records_the_c_index_of_every_round_and_client(values, tmp_path):
    folder = run(load_config(values), tmp_path / "r", workers=1)
    rounds, summary = folder.rounds(), folder.summary()
    assert all(0 < record.metrics["c_index"] < 1 for record in rounds)
    assert summary.final["c_index"] > 0.6
    assert summary.auroc == summary.final["c_index"]
    assert set(rounds[-1].per_client) == set(SITES)
    assert all(own["c_index"] is not None for own in rounds[-1].per_client.values())
    for name in ("threshold", "brier", "ece"):
        assert rounds[-1].metrics[name] is None
        assert rounds[-1].details.reasons[name].kind == "not-defined"
    assert summary.best is not None, "chosen by the C-index on validation rows"
    record = folder.config()["record"]
    assert record["task"] == "survival"
    assert "Breslow" in record["loss"]
    assert "threshold" not in record
    data, _ = load_and_partition(load_config(values))
    model = ExportedModel
    export_run(folder, tmp_path / "model", "last", onnx=False)
    risks = model.load(tmp_path / "model").predict(data.test.inputs)[:, 0].numpy()
    targets = data.test.targets.numpy()
    expected, _ = plain_c_index(np.abs(targets), targets > 0, risks)
    assert summary.final["c_index"] == pytest.approx(expected)


@pytest.mark.parametrize("engine", ["sequential", "processes", "fused"])
def test_all_engines_train_the_same_model(values, engine, tmp_path):
    # Of SGD: the last bias has no gradient under the Cox loss but rounding, and Adam would make steps of that.
    values = {**values, "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 16}}
    by_engine = []
    for name in ("vectorized", engine):
        folder = run(load_config({**values, "rounds": 2, "engine": name}), tmp_path / name)
        assert folder.config()["record"]["engine"] == name
        by_engine.append(folder.read_checkpoint()["federation"]["weights"])
    assert torch.allclose(*by_engine, atol=1e-5)


def test_no_pair_to_compare_is_said(values, tmp_path):
    file = Path(values["dataset"]["file"])
    lines = file.read_text().split()
    alone = [line.replace(",died", ",alive") if line.startswith("c,") else line for line in lines]
    file.write_text("\n".join(alone) + "\n")
    last = run(load_config({**values, "rounds": 1}), tmp_path / "r", workers=1).rounds()[-1]
    assert last.per_client["c"]["c_index"] is None
    reason = last.details.per_client_reasons["c"]["c_index"]
    assert reason.kind == "no-pair"
    assert "(0 with an event) no two can be compared" in reason.text
    assert not last.is_broken


@pytest.mark.slow
def test_analysis_and_report_say_c_index(values, tmp_path):
    matrix = {
        "base": values,
        "runs": [{}, {"attack": {"name": "sign-flip", "fraction": 0.34}}],
        "axes": {"aggregator.name": ["fedavg", "median"]},
        "seeds": [0, 1],
    }
    for config in expand(matrix):
        run(config, tmp_path / "r", workers=1)
    runs = load_runs([tmp_path / "r"])
    analysis = analyze(runs)
    text = analysis.markdown()
    assert "C-index" in text
    assert "AUROC" not in text
    (performance,) = (one for one in analysis.tables if one.key == "performance")
    assert {"C-index", "ΔC-index"} <= set(performance.columns)
    assert not {"AUPRC", "accuracy", "F1"} & set(performance.columns)
    attacked = [m for m in analysis.measured if m.run.attack != "clean"]
    assert all(m["delta_c_index"] is not None and m["delta_auroc"] is None for m in attacked)
    assert all(m["worst_client_c_index"] is not None for m in analysis.measured)
    page = write_page(runs, tmp_path / "page.html", "t", collect(runs, ())).read_text()
    assert "C-index against rounds" in page
    assert "AUROC (test)" not in page


def test_export_and_predict_give_risks(values, tmp_path):
    folder = run(load_config(values), tmp_path / "r", workers=1)
    export_run(folder, tmp_path / "model", onnx=False)
    model = ExportedModel.load(tmp_path / "model")
    said = model.predict_table({"age": ["45", "75"], "stage": ["1", "4"]}, "new.csv")
    assert (said.class_names, said.labels) == (("risk",), ())
    young, old = said.probabilities[:, 0]
    assert old > young
    assert {"months", "status"} <= set(model.known_columns())
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert "a risk score (log hazard) of `died`" in card
    assert "the best by C-index on validation samples" in card
    assert "AUROC" not in card
    assert model.manifest.thresholds == {}


def test_labels_can_be_flipped_and_backdoors_are_refused(values, tmp_path):
    from wardround import attacks
    from wardround.attacks import LocalData

    targets = torch.tensor([5.0, -3.0, 0.0, -0.0])
    flip = attacks.create("label-flip", p=1, mode="invert")
    flipped = flip.poison(LocalData(torch.zeros(4, 1), targets, 2), torch.Generator())
    assert flipped.targets.tolist() == [-5, 3, 0, 0]
    assert flipped.targets.signbit().tolist() == [True, False, True, False]
    only = attacks.create("label-flip", p=1, source=1, target=0)
    censored = only.poison(LocalData(torch.zeros(4, 1), targets, 2), torch.Generator()).targets
    assert censored.signbit().all()
    attack = {"name": "label-flip", "fraction": 0.34, "p": 1.0}
    honest = run(load_config({**values, "rounds": 2}), tmp_path / "h", workers=1).summary().final
    attacked = run(load_config({**values, "rounds": 2, "attack": attack}), tmp_path / "a", workers=1)
    assert attacked.summary().final["loss"] != honest["loss"]
    for name in ("backdoor", "edge-case"):
        config = load_config({**values, "attack": {"name": name, "fraction": 0.34}})
        with pytest.raises(ConfigError, match=f"attack '{name}' gives triggered samples a class"):
            run(config, tmp_path / "b", workers=1)


@pytest.mark.parametrize(
    ("rule", "why"), [("fedbnp", "practises on"), ("deepsight", "probabilities of classes")]
)
def test_rules_that_need_classes_are_refused_by_name(values, rule, why, tmp_path):
    with pytest.raises(ConfigError, match=f"aggregator '{rule}' .*{why}.*survival"):
        run(load_config({**values, "aggregator": {"name": rule}}), tmp_path / "r", workers=1)


def test_privacy_of_clients_works_and_of_patients_is_refused(values, tmp_path):
    pytest.importorskip("opacus")
    client = {"dp": {"unit": "client", "clip": 1.0, "noise_multiplier": 0.5}}
    folder = run(load_config({**values, "rounds": 1, "privacy": client}), tmp_path / "c", workers=1)
    assert folder.summary().privacy["epsilon"] > 0
    patient = {"dp": {"unit": "patient", "clip": 1.0, "noise_multiplier": 1.0}}
    with pytest.raises(ConfigError, match="the Cox loss compares the patients of a batch"):
        run(load_config({**values, "rounds": 1, "privacy": patient}), tmp_path / "p", workers=1)


def test_a_red_team_names_the_metric(values, tmp_path):
    from wardround.experiments.redteam.results import outcome_of

    summary = run(load_config({**values, "rounds": 1}), tmp_path / "r", workers=1).summary()
    assert outcome_of(summary, 0, "c_index", None).value == summary.final["c_index"]
    with pytest.raises(ConfigError, match=r"these runs have no auroc.*choose from: c_index"):
        outcome_of(summary, 0, "auroc", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event": None}, "survival task has time and event: time is given, event is not"),
        ({"time": None}, "survival task has time and event: event is given, time is not"),
        (
            {"task": "survival", "time": None, "event": None, "label": "status"},
            "task survival needs the columns",
        ),
        ({"task": "classification"}, "time and event are of task survival"),
        ({"label": "stage"}, "give label .classes. or time and event .survival., not both"),
    ],
)
def test_options_that_do_not_go_together(values, change, message):
    options = {key: value for key, value in {**values["dataset"], **change}.items() if value is not None}
    with pytest.raises((ConfigError, ParameterError), match=message):
        datasets.create(options.pop("name"), **options)


def test_cells_that_are_no_times_are_named(values, table):
    lines = table.read_text().split()
    for cell, shown in (("-3", "'-3'"), ("soon", "soon"), ("", "''")):
        first = lines[1].split(",")
        first[3] = cell
        table.write_text("\n".join([lines[0], ",".join(first), *lines[2:]]) + "\n")
        with pytest.raises(DataError, match=shown):
            load_and_partition(load_config({**values, "seed": 99}))
        check = check_table(
            datasets.create("csv", **{k: v for k, v in values["dataset"].items() if k != "name"})
        )
        assert any("time 'months'" in text and "row 1" in text for text in check.of("error"))
    first[3], first[4] = "5", "moved"
    table.write_text("\n".join([lines[0], ",".join(first), *lines[2:]]) + "\n")
    with pytest.raises(DataError, match="event 'status' has 3 different values"):
        load_and_partition(load_config({**values, "seed": 98}))


def test_a_check_knows_the_roles(values):
    options = {key: value for key, value in values["dataset"].items() if key != "name"}
    check = check_table(datasets.create("csv", **options))
    assert not check.of("error")
    text = in_full(check)
    assert "survival: time months, event status: alive" in text
    assert "the event)" in text
    assert {column.name: column.role for column in check.columns}["months"] == "time"
    assert json.loads(json.dumps(check.plain()))["time"] == "months"


def test_a_schema_carries_the_time(table, values, tmp_path):
    inferred = infer_schema([table], "status", time="months", client="site")
    schema = inferred.schema
    assert (schema.label.time, schema.label.classes) == ("months", ("alive", "died"))
    assert [column.name for column in schema.columns] == ["age", "stage"]
    assert "the event is 'died'" in inferred.notes[-1]
    file = tmp_path / "schema.yaml"
    file.write_text(schema.dump())
    assert Schema.load(file).hash == schema.hash
    by_schema = datasets.create("csv", file=table, schema=file).load(0)
    by_options = datasets.create("csv", **{k: v for k, v in values["dataset"].items() if k != "name"}).load(0)
    assert torch.equal(by_schema.train.targets, by_options.train.targets)
    with pytest.raises(ConfigError, match="task is 'classification', but the schema's label has a time"):
        datasets.create("csv", file=table, schema=file, task="classification").load(0)
    table.write_text(table.read_text().replace("months", "weeks"))
    with pytest.raises(SchemaMismatch, match=r"column 'months' is not there, expected the time to the event"):
        datasets.create("csv", file=table, schema=file).load(0)
    with pytest.raises(ConfigError, match="with a time it has two classes"):
        Schema.from_dict(
            {"columns": [{"name": "x"}], "label": {"name": "y", "classes": ["a", "b", "c"], "time": "t"}}
        )
    with pytest.raises(ConfigError, match="'x' is the time to the event and can be nothing else"):
        Schema.from_dict(
            {"columns": [{"name": "x"}], "label": {"name": "y", "classes": ["a", "b"], "time": "x"}}
        )


@pytest.mark.slow
def test_icu_has_it_too():
    data = datasets.create("icu", task="survival").load(0)
    assert (data.task.value, data.class_names) == ("survival", ("censored", "died"))
    everybody = torch.cat([data.train.targets, data.validation.targets, data.test.targets])
    assert len(everybody) == 9105
    assert int((everybody > 0).sum()) == 6201, "deaths in up to 2029 days"
    assert everybody.abs().max() == 2029
    plain = datasets.create("icu").load(0)
    assert plain.feature_names == data.feature_names, "neither task sees the other's answer"
