"""`wardround status`."""

import json

import pytest
from typer.testing import CliRunner

from wardround.cli.console import console
from wardround.cli.main import app
from wardround.records import ClientRecord, LeftOut, RoundRecord
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantine


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A screen on which no cell is cut, whatever the width of the one that the tests run in."""
    monkeypatch.setattr(console, "_width", 160)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "heart-1")
    folder.path.mkdir(parents=True)
    config = {"rounds": 4, "partition": {"clients": 4}, "federation": {}, "privacy": {"dp": {"budget": 8.0}}}
    folder.write_config(config)
    audit = AuditLog(folder.path / "audit.jsonl")
    for name in "abc":
        audit.append("joined", client=name, samples=50)
    audit.append("refused", client="d", reason="its data do not fit: column 'thal'")
    clients = [
        ClientRecord(1, "a", flag=False, num_samples=50, columns={"norm": 1.5}),
        ClientRecord(1, "b", flag=True, score=7.25, num_samples=50, columns={"norm": 9.5}),
        ClientRecord(1, "c", "absent", "no answer within 60 s"),
    ]
    measured = {
        "metrics": {"auroc": 0.75},
        "per_client": {"a": {"auroc": 0.75}},
        "privacy": {"epsilon": 1.25},
    }
    left_out = {"c": LeftOut("absent", "no answer")}
    folder.append(RoundRecord(1, {"train": 2.0}, left_out=left_out, clients=clients, **measured))
    audit.append("disconnected", client="c")
    quarantine(folder.path, "b", "scanner replaced")
    return folder


def status(*arguments):
    result = CliRunner().invoke(app, ["status", *map(str, arguments)], env={"TERM": "xterm"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_screen(folder):
    with folder.locked():
        text = status(folder.path)
    assert "heart-1: running, round 1 of 4" in text
    assert "2.0 s per round; ends in about 6.0 s" in text
    assert "2 of 4 expected hospitals take part; 1 quarantined" in text
    assert "AUROC 0.750 (round 1, the median of 1 hospitals)" in text
    assert "ε = 1.250 of 8" in text
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert "quarantined" in rows["b"]
    assert "scanner replaced" in rows["b"]
    assert "away" in rows["c"]
    assert "no answer within 60 s" in rows["c"]
    assert "there" in rows["a"]
    assert "refused: d: its data do not fit: column 'thal'" in text


def test_open_warnings(folder):
    audit = AuditLog(folder.path / "audit.jsonl")
    audit.append("warning", topic="certificate", reason="server.pem: expires in 12 days")
    with folder.locked():
        assert "WARNING: certificate: server.pem: expires in 12 days" in status(folder.path)
        assert json.loads(status(folder.path, "--json"))["warnings"] == [
            "certificate: server.pem: expires in 12 days"
        ]
    assert "WARNING" not in status(folder.path), "of a run that is over nobody is warned"


def test_for_programs_and_of_a_folder_of_runs(folder):
    values = json.loads(status(folder.path.parent, "--json"))
    assert (values["run"], values["status"], values["round"]) == ("heart-1", "killed", 1)
    assert values["quarantined"] == {"b": "scanner replaced"}
    by_name = {one["name"]: one for one in values["clients"]}
    assert by_name["b"]["flag_reason"].startswith("score 7.25")
    assert by_name["b"]["last_flag"] == 1
    assert by_name["c"]["state"] == "away"
    assert values["epsilon"] == 1.25


def test_no_run(tmp_path):
    result = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert result.exit_code != 0
    assert "no run in it" in str(result.exception)


def test_many_clients_those_to_look_at_come_first(folder):
    records = [ClientRecord(2, f"z{number:03}", num_samples=1) for number in range(60)]
    records.append(ClientRecord(2, "zzz", "dropped", "not finite"))
    folder.append(RoundRecord(2, {}, None, clients=records))
    text = status(folder.path)
    assert "zzz" in text
    assert "24 more" in text
