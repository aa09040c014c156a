"""Metrics, read by Prometheus' own parser."""

import json
import math
import re
from pathlib import Path

import pytest

from wardround.records import ClientRecord, RoundRecord
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.overview import RunOverview
from wardround.runs.prometheus import Families, exposition

parser = pytest.importorskip("prometheus_client.parser")
ROOT = Path(__file__).parents[2]


def parsed(text):
    families = list(parser.text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "every metric is declared once"
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }, {family.name: family for family in families}


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "heart-1")
    folder.path.mkdir()
    config = {"rounds": 4, "partition": {"clients": 3}, "federation": {}, "privacy": {"dp": {"budget": 8.0}}}
    folder.write_config(config)
    audit = AuditLog(folder.path / "audit.jsonl")
    audit.append("joined", client="a", samples=5)
    clients = [
        ClientRecord(1, "a", flag=True, num_samples=5, columns={"norm": 1.5}),
        ClientRecord(1, "b", "dropped", "NaN"),
    ]
    measured = {"metrics": {"auroc": 0.75, "auprc": None}, "privacy": {"epsilon": 1.25}}
    per_client = {"a": {"auroc": 0.75}, "b": {"auroc": None}}
    seconds = {"train": 2.5, "evaluate": 0.5}
    folder.append(RoundRecord(1, seconds, clients=clients, per_client=per_client, **measured))
    state = tmp_path / ".federation" / "heart-1"
    state.mkdir(parents=True)
    (state / "gateway.json").write_text('{"refused": 7, "bytes_in": 1000, "bytes_out": 2000}')
    return RunOverview.read(folder.path)


def test_every_figure_an_operator_asks_for(run):
    samples, families = parsed(exposition([run]))

    def value(name, **labels):
        return samples[(f"wardround_{name}", *sorted({"run": "heart-1", **labels}.items()))]

    assert value("round") == 1
    assert value("rounds") == 4
    assert value("phase_seconds_total", phase="train") == 2.5
    assert value("last_round_seconds", phase="evaluate") == 0.5
    assert value("seconds_left") == 9.0
    assert value("hospitals_expected") == 3
    assert value("hospitals_present") == 2
    assert value("flags_total", client="a") == 1
    assert value("left_out_total", client="b", status="dropped") == 1
    assert value("left_out_total", client="b", status="absent") == 0
    assert value("refused_connections_total") == 7
    assert value("bytes_total", direction="in") == 1000
    assert value("bytes_total", direction="out") == 2000
    assert value("epsilon") == 1.25
    assert value("epsilon_budget") == 8.0
    assert value("evaluation", metric="auroc") == 0.75
    assert value("evaluation_hospitals") == 1
    assert value("update_norm", client="a") == 1.5
    assert value("run_status", status="killed") == 1
    assert value("run_status", status="running") == 0
    assert value("last_seen_timestamp_seconds", client="a") > 1e9
    assert families["wardround_flags"].type == "counter"
    assert families["wardround_epsilon"].type == "gauge"
    assert not any("auprc" in str(key) for key in samples), "no figure, no sample"


def test_open_warnings_are_counted_by_topic(run):
    audit = AuditLog(run.path / "audit.jsonl")
    for client in ("a", "b"):
        audit.append("warning", topic="clock", client=client, reason="60 s behind")
    with RunFolder(run.path).locked():
        run.poll()
        samples, _ = parsed(exposition([run]))
    assert samples["wardround_warnings", ("run", "heart-1"), ("topic", "clock")] == 2


def test_names_of_clients_are_escaped_and_numbers_are_any():
    families = Families()
    odd = 'a "b"\\c\nd'
    families.gauge("x", "Odd.", 1e39, {"client": odd})
    families.gauge("x", "Odd.", math.inf, {"client": "inf"})
    families.gauge("x", "Odd.", math.nan, {"client": "nan"})
    families.gauge("y", "Nothing.", None, {})
    samples, names = parsed(families.text())
    assert samples["wardround_x", ("client", odd)] == 1e39
    assert samples["wardround_x", ("client", "inf")] == math.inf
    assert math.isnan(samples["wardround_x", ("client", "nan")])
    assert set(names) == {"wardround_x"}


def test_several_runs_and_none(run):
    assert exposition([]) == ""
    samples, _ = parsed(exposition([run]))
    assert {dict(key[1:])["run"] for key in samples} == {"heart-1"}


def test_the_dashboard_asks_for_metrics_that_exist(run):
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 10
    known = {key[0] for key in parsed(exposition([run]))[0]}
    asked = {name for query in queries for name in re.findall(r"wardround_\w+", query)}
    assert asked <= known, asked - known
    needed = {"round", "phase_seconds_total", "hospitals_present", "flags_total", "left_out_total",
              "refused_connections_total", "epsilon", "bytes_total"}  # fmt: skip
    assert {f"wardround_{name}" for name in needed} <= asked
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
