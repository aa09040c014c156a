"""Tracking: against a real MLflow server, a SQLite store, wandb offline; and failing without hurting anybody."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from free_ports import free_port

from wardround.errors import ConfigError
from wardround.experiments import Event, RunFolder, expand, run, run_many
from wardround.experiments.tracking import tracked

SERVER_NEEDS = [name for name in ("flask", "flask_cors", "fastapi", "uvicorn", "aiohttp")
                if importlib.util.find_spec(name) is None]  # fmt: skip
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed"
)
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")


@pytest.fixture(autouse=True)
def _no_calls_home(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def matrix(tiny):
    return expand({"base": tiny, "axes": {"aggregator.name": ["fedavg", "caac"]}})


def track(configs, out, backend="mlflow", uri=None, name="pair"):
    """Run them in this process, as a worker would, and report every round."""
    with tracked(backend, uri, name, out, lambda event: None) as note:
        for config in configs:
            folder = run(config, out, lambda record, c=config: note(Event("round", c.run_name, record.round)))
            note(Event("finished", config.run_name, config.rounds))
            assert folder.summary().status == "finished"


def runs_at(uri):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("wardround")
    return client, {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def check(uri, configs, out):
    client, found = runs_at(uri)
    assert set(found) == {"pair", *(config.run_name for config in configs)}
    for config in configs:
        one = found[config.run_name]
        assert one.info.status == "FINISHED"
        assert one.data.tags["mlflow.parentRunId"] == found["pair"].info.run_id
        assert one.data.params["aggregator.name"] == config.aggregator["name"]
        assert one.data.params["training.lr"] == "0.001"
        history = client.get_metric_history(one.info.run_id, "test.auroc")
        lines = RunFolder(out / config.run_name).rounds()
        assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == [
            (line.round, pytest.approx(line.metrics["auroc"])) for line in lines
        ]
        assert one.data.metrics["summary.final.auroc"] == pytest.approx(lines[-1].metrics["auroc"])
        assert {artefact.path for artefact in client.list_artifacts(one.info.run_id)} == {
            "config.yaml", "summary.json", "rounds.jsonl", "clients.jsonl",
        }  # fmt: skip
    assert found["pair"].info.status == "FINISHED"


def is_healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def server(tmp_path):
    if SERVER_NEEDS:
        pytest.skip(f"an MLflow server needs {', '.join(SERVER_NEEDS)}")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}",
               "--artifacts-destination", str(tmp_path / "artefacts")]  # fmt: skip
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(tmp_path / "server.log", "w") as log:
        process = subprocess.Popen(command, env=quiet, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not is_healthy(port):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the session of its own that was started above
        process.wait()


@pytest.mark.slow
@needs_mlflow
def test_a_real_server_gets_parameters_metrics_artefacts_and_nesting(matrix, tmp_path, server):
    track(matrix, tmp_path / "runs", uri=server)
    check(server, matrix, tmp_path / "runs")


@pytest.mark.slow
@needs_mlflow
def test_a_sqlite_file_by_default_and_nothing_twice(matrix, tmp_path):
    out = tmp_path / "runs"
    track(matrix, out)
    uri = f"sqlite:///{out / 'mlflow.db'}"
    check(uri, matrix, out)
    with tracked("mlflow", None, "pair", out, lambda event: None) as note:
        run_many(matrix, out, 1, note)  # all finished: reported as skipped
    check(uri, matrix, out)


@pytest.mark.slow
@needs_mlflow
def test_a_run_that_goes_on_is_the_same_run_there_with_no_round_twice(tiny, tmp_path):
    (config,) = expand({"base": tiny})
    out = tmp_path / "runs"

    def stop_after_three(record):
        note(Event("round", config.run_name, record.round))
        if record.round == 3:
            raise KeyboardInterrupt

    with tracked("mlflow", None, "pair", out, lambda event: None) as note:
        with pytest.raises(KeyboardInterrupt):
            run(config, out, stop_after_three)
        note(Event("stopped", config.run_name, 3))
    uri = f"sqlite:///{out / 'mlflow.db'}"
    assert runs_at(uri)[1][config.run_name].info.status == "KILLED"
    track([config], out)
    check(uri, [config], out)


@pytest.mark.slow
@needs_mlflow
def test_a_dead_server_costs_a_line_and_no_run(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (config,) = expand({"base": tiny})
    track([config], tmp_path, uri="http://127.0.0.1:9")
    printed = capsys.readouterr().err
    assert printed.startswith("wardround: tracking stopped, the runs continue (")
    assert printed.count("\n") == 1


@pytest.mark.slow
@needs_wandb
def test_wandb_offline(matrix, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for place in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(place, str(tmp_path / "wandb-data"))
    out = tmp_path / "runs"
    track(matrix, out, backend="wandb")
    kept = list((out / "wandb").glob("offline-run-*"))
    assert len(kept) == 2
    records = read_wandb(next(path for path in kept if path.name.endswith(matrix[0].run_name)))
    rounds = [line.metrics["auroc"] for line in RunFolder(out / matrix[0].run_name).rounds()]
    assert records["test.auroc"] == pytest.approx(rounds)
    assert records["group"] == "pair"
    track(matrix, out, backend="wandb")
    assert len(list((out / "wandb").glob("offline-run-*"))) == 2, "nothing twice"


def wandb_records(path):
    """The records of an offline file: LevelDB's log format, 7 bytes of header, blocks of 32 KiB."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # too small for a header: padding
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield record
            record = b""


def read_wandb(folder):
    """What was logged: values by name, and the group."""
    from wandb.proto import wandb_internal_pb2

    found = {"test.auroc": [], "group": None}
    for data in wandb_records(next(folder.glob("*.wandb"))):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            found["group"] = record.run.run_group
        for item in record.history.item if record.HasField("history") else ():
            key = item.key or ".".join(item.nested_key)
            if key == "test.auroc":
                found[key].append(json.loads(item.value_json))
    return found


def test_no_tracking_is_the_listener_itself_and_an_address_needs_a_tracker(tmp_path):
    def listen(event):
        pass

    with tracked(None, None, None, tmp_path, listen) as note:
        assert note is listen
    with (
        pytest.raises(ConfigError, match="--track-uri goes with --track mlflow"),
        tracked(None, "http://x", None, tmp_path, listen),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="WANDB_BASE_URL"),
        tracked("wandb", "http://x", None, tmp_path, listen),
    ):
        pass
    assert not list(tmp_path.iterdir())
