"""The operator's commands: audit, quarantine, release, certificates."""

import json

import pytest
from typer.testing import CliRunner

from wardround.cli.main import app
from wardround.errors import ConfigError, WardroundError
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantined


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"name": "fed"})
    folder.append({"round": 1}, [{"round": 1, "client": "hospital-a"}])
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_an_operators_day(run):
    assert "from the next round on" in call("quarantine", run, "hospital-a", "--reason", "broken").stdout
    assert quarantined(run) == {"hospital-a": "broken"}
    first = json.loads(call("audit", "verify", run, "--json").stdout)
    assert first["lines"] == 1
    assert call("release", run, "hospital-a", "--reason", "mended").exit_code == 0
    assert quarantined(run) == {}
    told = call("audit", "verify", run / "audit.jsonl", "--head", first["head"]).stdout
    assert "2 lines, whole" in told
    assert first["head"] not in told


def test_a_log_that_was_touched(run):
    call("quarantine", run, "hospital-a", "--reason", "broken")
    path = run / "audit.jsonl"
    path.write_text(path.read_text().replace("broken", "nothing"))
    told = call("audit", "verify", run)
    assert isinstance(told.exception, WardroundError)
    assert "line 1 is broken" in str(told.exception)


def test_a_reason_is_asked_for(run):
    assert call("quarantine", run, "hospital-a").exit_code == 2
    assert isinstance(call("quarantine", run, "hospital-a", "--reason", " ").exception, ConfigError)


def test_certificates_are_asked_for_by_name(tmp_path):
    pytest.importorskip("cryptography")
    assert isinstance(call("certs", tmp_path).exception, ConfigError)
    told = call("certs", tmp_path / "keys", "--host", "127.0.0.1", "--node", "hospital-a").stdout.split()
    assert len(told) == 6
    assert isinstance(call("certs", tmp_path / "keys", "--node", "hospital-a").exception, ConfigError)
