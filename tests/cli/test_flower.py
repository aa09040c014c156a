"""The operator's commands: audit, quarantine, release, certificates."""

import json

import pytest
from typer.testing import CliRunner

from wardround.cli.main import app
from wardround.errors import ConfigError, WardroundError
from wardround.records import ClientRecord, RoundRecord, Summary
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantined


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"name": "fed"})
    folder.append(RoundRecord(1, clients=[ClientRecord(1, "hospital-a")]))
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_quarantine_release_and_verify(run):
    assert "from the next round on" in call("quarantine", run, "hospital-a", "--reason", "broken").stdout
    assert quarantined(run) == {"hospital-a": "broken"}
    first = json.loads(call("audit", "verify", run, "--json").stdout)
    assert first["lines"] == 1
    assert call("release", run, "hospital-a", "--reason", "fixed").exit_code == 0
    assert quarantined(run) == {}
    output = call("audit", "verify", run / "audit.jsonl", "--head", first["head"]).stdout
    assert "2 lines, whole" in output
    assert first["head"] not in output


@pytest.mark.parametrize("command", ["quarantine", "release"])
def test_a_finished_run_is_refused(run, command):
    RunFolder(run).write_summary(Summary("finished"))
    result = call(command, run, "hospital-a", "--reason", "too late")
    assert isinstance(result.exception, ConfigError)
    assert "this run is finished" in str(result.exception)
    assert not (run / "audit.jsonl").exists()


def test_an_edited_log_is_detected(run):
    call("quarantine", run, "hospital-a", "--reason", "broken")
    path = run / "audit.jsonl"
    path.write_text(path.read_text().replace("broken", "nothing"))
    result = call("audit", "verify", run)
    assert isinstance(result.exception, WardroundError)
    assert "line 1 is broken" in str(result.exception)


def test_a_reason_is_asked_for(run):
    assert call("quarantine", run, "hospital-a").exit_code == 2
    assert isinstance(call("quarantine", run, "hospital-a", "--reason", " ").exception, ConfigError)


def test_certificates_are_asked_for_by_name(tmp_path):
    pytest.importorskip("cryptography")
    assert isinstance(call("certs", tmp_path).exception, ConfigError)
    paths = call("certs", tmp_path / "keys", "--host", "127.0.0.1", "--node", "hospital-a").stdout.split()
    assert len(paths) == 6
    assert isinstance(call("certs", tmp_path / "keys", "--node", "hospital-a").exception, ConfigError)


@pytest.mark.slow
def test_a_log_is_compared_with_what_a_hospital_was_shown(run, tmp_path):
    log = AuditLog(run / "audit.jsonl")
    log.append("joined", client="hospital-a")
    outgoing = tmp_path / "outgoing.jsonl"

    def show(*names):
        lines = [json.dumps({"kind": "train", "run": name, "audit": list(log.head())}) for name in names]
        outgoing.write_text("".join(f"{line}\n" for line in lines))

    show("key:abc", "key:abc")
    assert "all 2 heads" in call("audit", "verify", run, "--against", outgoing).stdout
    assert json.loads(call("audit", "verify", run, "--against", outgoing, "--json").stdout)["shown"] == 2
    show(f"run:{run.name}", "run:other")
    assert "all 1 heads" in call("audit", "verify", run, "--against", outgoing).stdout
    show("run:one", "run:other")
    refused = call("audit", "verify", run, "--against", outgoing).exception
    assert isinstance(refused, ConfigError)
    assert "--run: run:one, run:other" in str(refused)
    assert call("audit", "verify", run, "--against", outgoing, "--run", "run:one").exit_code == 0
    (run / "audit.jsonl").unlink()
    AuditLog(run / "audit.jsonl").append("joined", client="hospital-b")
    assert call("audit", "verify", run).exit_code == 0, "nothing shows without the hospital"
    refused = call("audit", "verify", run, "--against", outgoing, "--run", "run:one").exception
    assert isinstance(refused, WardroundError)
    assert "line 1, which the hospital was shown" in str(refused)
    outgoing.write_text("")
    assert "no audit log yet" in str(call("audit", "verify", run, "--against", outgoing).exception)
