"""What is checked at a server before anybody is waited for."""

import json
import socket

import pytest
from typer.testing import CliRunner

from wardround.cli.main import app
from wardround.errors import ConfigError
from wardround.files import locked
from wardround.flower.certificates import make_server_certificate
from wardround.flower.preflight import machine
from wardround.flower.server.serve import Server


def check(path, tmp_path, **options):
    findings = Server.read(path, tmp_path / "runs", options.pop("insecure", False)).check(**options)
    return {finding.check: finding for finding in findings}


def test_a_server_that_is_ready(fed, tmp_path):
    schema = tmp_path / "schema.yaml"
    schema.write_text("columns: [{name: age}, {name: score}]\nlabel: {name: died, classes: ['0', '1']}\n")
    found = check(fed(schema="schema.yaml", metrics_port=None), tmp_path)
    assert {one.status for one in found.values() if one.check != "clock"} == {"ok"}
    assert "valid until" in found["certificate"].text
    assert found["hospitals' keys"].text.endswith("a, b")
    assert found["model"].text == "'logistic' with 3 weights"
    assert {"authority", "server's key", "port", "clock", "disk", "memory"} <= set(found)


@pytest.mark.parametrize(
    ("days", "status", "words"), [(31, "ok", "valid until"), (29, "warning", "expires in 2")]
)
def test_a_certificate_that_ends_soon(fed, keys, tmp_path, days, status, words):
    make_server_certificate(keys.folder, ["127.0.0.1"], days=days, force=True)
    found = check(fed(), tmp_path)["certificate"]
    assert found.status == status
    assert words in found.text
    assert status == "ok" or "wardround certs" in found.remedy


def test_a_certificate_of_another_authority_or_with_another_key(fed, keys, tmp_path):
    make_server_certificate(tmp_path / "other", ["127.0.0.1"])
    path = fed(certificate="other/server.pem", certificate_key="other/server.key")
    assert "not signed by" in check(path, tmp_path)["certificate"].text
    path = fed(certificate_key="other/server.key")
    assert "do not belong together" in check(path, tmp_path)["certificate"].text
    keys.server.write_text("hello")
    assert check(fed(), tmp_path)["certificate"].status == "failed"


def test_a_key_that_others_may_read(fed, keys, tmp_path):
    keys.server_key.chmod(0o644)
    found = check(fed(), tmp_path)["server's key"]
    assert (found.status, found.remedy) == ("failed", f"run: chmod 600 {keys.server_key}")


def test_keys_of_too_few_hospitals(fed, keys, tmp_path):
    assert check(fed(clients=3), tmp_path)["hospitals' keys"].status == "warning"
    (keys.nodes / "b.pub").unlink()
    found = check(fed(), tmp_path)["hospitals' keys"]
    assert found.status == "failed"
    assert "a round needs 2 hospitals" in found.text


def test_ports_in_use_unless_this_federation_uses_them(fed, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = fed(port=port, metrics_port=port)
        found = check(path, tmp_path)
        assert found["port"].status == found["metrics port"].status == "failed"
        state = Server.read(path, tmp_path / "runs").state
        state.mkdir(parents=True)
        with locked(state / ".lock"):
            found = check(path, tmp_path)
            assert "port" not in found
            assert found["ports"].status == "ok"


def test_root_samples_that_leave_none_to_judge_by(fed, tmp_path):
    run = {"dataset": {"name": "synthetic", "samples": 100, "features": 4}, "aggregator": {"name": "fedbnp"}}
    found = check(fed({**run, "root": {"samples": 1000}}), tmp_path)["server's data"]
    assert found.status == "failed"
    assert "takes all 10 validation samples" in found.text
    found = check(fed({**run, "root": {"samples": 5}}), tmp_path)
    assert found["server's data"].text.startswith(
        "'synthetic': 10 validation samples, 5 of them trusted root samples"
    )
    assert found["model"].status == "ok"


def test_a_steward_that_is_not_there(fed, tmp_path):
    pytest.importorskip("tenseal")
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "server.key").write_bytes(b"0" * 64)
    privacy = {
        "mode": "encrypted-fedmed",
        "steward": "http://127.0.0.1:1",
        "steward_keys": str(tmp_path / "vault"),
    }
    found = check(fed({"aggregator": {"name": "fedmed"}, "privacy": privacy}), tmp_path)["steward"]
    assert found.status == "failed"
    assert "wardround steward" in found.remedy


def test_too_little_disk_or_memory(fed, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 10**6)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 10**6}))
    run = {"dataset": {"name": "synthetic", "samples": 100, "features": 4}}
    found = check(fed(run), tmp_path)
    assert found["disk"].status == found["memory"].status == "failed"


def test_insecure_is_a_warning_and_needs_no_keys(fed, tmp_path):
    found = check(fed(certificate=None), tmp_path, insecure=True)
    assert found["keys"].status == "warning"
    assert "certificate" not in found


def test_serve_says_what_failed_before_anything_is_started(fed, keys, tmp_path):
    keys.server_key.chmod(0o644)
    (keys.nodes / "b.pub").unlink()
    server, lines = Server.read(fed(), tmp_path / "runs"), []
    with pytest.raises(ConfigError, match=r"others may read .*chmod 600.* \(and 1 more: `wardround check`"):
        server.preflight(lines.append)
    assert not (tmp_path / "runs").exists()


def test_the_command(fed, keys, tmp_path):
    path = str(fed())
    done = CliRunner().invoke(app, ["check", path, "--out", str(tmp_path / "runs")], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "0 of " in done.stdout
    keys.server_key.chmod(0o644)
    done = CliRunner().invoke(app, ["check", path, "--json", "--out", str(tmp_path / "runs")])
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert [one["check"] for one in answer["findings"] if one["status"] == "failed"] == ["server's key"]
    done = CliRunner().invoke(app, ["check", path, "--schema", "x.yaml"])
    assert "--schema: is for a hospital" in str(done.exception)
