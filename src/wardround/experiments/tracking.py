"""Experiment tracking by MLflow or Weights & Biases, from what runs write anyway.

The tracker stands beside the runs: it hears their events, reads the new lines of their folders and sends them
on from a thread of its own. Whatever goes wrong there (no server, no disk, no package inside the package) ends
the tracking with one line on stderr, and never a run.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from wardround.errors import ConfigError, require
from wardround.experiments.events import Event, Listener
from wardround.records import RoundRecord
from wardround.runs.config import RECORD
from wardround.runs.folder import RunFolder

__all__ = ["Backend", "tracked"]

PROJECT = "wardround"
PATIENCE = 60.0  # seconds that the end of the runs waits for the tracker to catch up
ARTEFACTS = ("config.yaml", "summary.json", "rounds.jsonl", "clients.jsonl")


class Backend(StrEnum):
    """Where runs can be tracked."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


class Sink(Protocol):
    """What a tracking service must be able to do."""

    def begin(self, name: str, folder: RunFolder) -> int | None:
        """Open or resume a run; returns the last round it has, None if it is complete already."""
        ...

    def log(self, name: str, metrics: dict[str, float], round: int) -> None: ...

    def end(self, name: str, folder: RunFolder, status: str, summary: dict[str, float]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def tracked(
    backend: str | None, uri: str | None, matrix: str | None, out: Path, listen: Listener
) -> Iterator[Listener]:
    """A listener that also tracks; `matrix` is what the runs nest under, None for a single run."""
    if backend is None:
        if uri is not None:
            raise ConfigError("--track-uri goes with --track mlflow")
        yield listen
        return
    tracker = _Tracker(_sink(backend, uri, matrix, out), out)

    def both(event: Event) -> None:
        tracker.note(event)
        listen(event)

    try:
        yield both
    finally:
        tracker.close()


def _sink(backend: str, uri: str | None, matrix: str | None, out: Path) -> Callable[[], Sink]:
    """How to open the service; it is opened in the tracker's thread, so that no run waits for it."""
    if Backend(backend) is Backend.WANDB:
        if uri is not None:
            raise ConfigError("--track-uri goes with --track mlflow; wandb takes WANDB_BASE_URL")
        for place in (
            "WANDB_DATA_DIR",
            "WANDB_CACHE_DIR",
            "WANDB_ARTIFACT_DIR",
        ):  # its copies stay with the runs
            os.environ.setdefault(place, str(out.resolve() / "wandb"))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = require("wandb", "tracking")
        return lambda: _Wandb(wandb, matrix, out)
    # Before the import: it reads them. No usage statistics are sent, and a dead server is given up soon.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    require("mlflow", "tracking")
    address = uri or os.environ.get("MLFLOW_TRACKING_URI")
    return lambda: _Mlflow(address, matrix, out)


class _Tracker:
    """Hands events to a thread; the first failure is reported once and ends it."""

    def __init__(self, open_sink: Callable[[], Sink], out: Path) -> None:
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.out = out
        self.thread = threading.Thread(target=self._work, args=(open_sink,), name="tracking", daemon=True)
        self.thread.start()

    def note(self, event: Event) -> None:
        self.events.put(event)

    def close(self) -> None:
        """Wait until all is sent, but not for ever."""
        self.events.put(None)
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            _complain(f"gave up waiting after {PATIENCE:.0f} s")

    def _work(self, open_sink: Callable[[], Sink]) -> None:
        try:
            sink = open_sink()
            following: dict[str, _Follower] = {}
            while (event := self.events.get()) is not None:
                folder = RunFolder(self.out / event.run)
                if event.kind == "started" or not folder.config_path.exists():
                    continue  # nothing is written yet, or never was: the configuration was refused
                if event.run not in following:
                    following[event.run] = _Follower(event.run, folder, sink)
                following[event.run].catch_up()
                if event.ends_the_run:
                    following.pop(event.run).end("finished" if event.kind == "skipped" else event.kind)
            for follower in following.values():
                follower.end("stopped")
            sink.close()
        except Exception as error:
            _complain(f"{type(error).__name__}: {error}")


def _complain(why: str) -> None:
    reason = " ".join(why.split())
    print(f"wardround: tracking stopped, the runs continue ({reason[:300]})", file=sys.stderr, flush=True)


class _Follower:
    """Sends what is new in a run's folder."""

    def __init__(self, name: str, folder: RunFolder, sink: Sink) -> None:
        self.name, self.folder, self.sink = name, folder, sink
        self.known = sink.begin(name, folder)
        self.offset = 0

    def catch_up(self) -> None:
        if self.known is None or not self.folder.rounds_path.exists():
            return
        with open(self.folder.rounds_path, "rb") as file:
            file.seek(self.offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break  # half written: next time
                self.offset += len(raw)
                record = RoundRecord.from_line(json.loads(raw))
                if record.round > self.known:
                    self.sink.log(self.name, _metrics(record), record.round)
                    self.known = record.round

    def end(self, status: str) -> None:
        if self.known is not None:
            summary = self.folder.summary()
            values = {} if summary is None else summary.plain()
            numbers = _numbers({name: value for name, value in values.items() if name != "schema"})
            ended = status if summary is None or status != "finished" else summary.status
            self.sink.end(self.name, self.folder, ended, numbers)


def _metrics(record: RoundRecord) -> dict[str, float]:
    parts = {"test": record.metrics, "validation": record.validation, "seconds": record.seconds}
    return {"round": float(record.round), **_numbers({key: value for key, value in parts.items() if value})}


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested numbers with dotted names; what is no number is left out."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[f"{prefix}{key}"] = float(value)
    return numbers


def _parameters(folder: RunFolder) -> dict[str, str]:
    """The configuration with dotted names, and the versions it ran with."""
    config = folder.config()
    record = config.pop(RECORD, {})
    versions = {key: record.get(key) for key in ("wardround", "torch", "python", "engine")}
    flat: dict[str, str] = {}

    def walk(values: dict[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)

    walk(config | {"version": {key: value for key, value in versions.items() if value}}, "")
    return flat


class _Mlflow:
    """Runs under one experiment, children of their matrix's run; a run tracked before is continued."""

    def __init__(self, uri: str | None, matrix: str | None, out: Path) -> None:
        from mlflow import MlflowClient

        location = None
        if uri is None:
            out.mkdir(parents=True, exist_ok=True)
            uri, location = (
                f"sqlite:///{out.resolve() / 'mlflow.db'}",
                (out.resolve() / "mlflow-artefacts").as_uri(),
            )
        self.client = MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(PROJECT)
        self.experiment = known.experiment_id if known else self.client.create_experiment(PROJECT, location)
        self.ids: dict[str, str] = {}
        self.parent = self._open(matrix, {"wardround.kind": "matrix"})[0] if matrix else None

    def _open(self, name: str, tags: dict[str, str]) -> tuple[str, Any]:
        parent = (
            {"mlflow.parentRunId": self.parent} if tags["wardround.kind"] == "run" and self.parent else {}
        )
        known = self.client.search_runs(
            [self.experiment],
            f"tags.`wardround.kind` = '{tags['wardround.kind']}' and tags.`mlflow.runName` = '{name}'",
            max_results=1,
        )
        for run in known:
            if not parent or run.data.tags.get("mlflow.parentRunId") == self.parent:
                return run.info.run_id, run
        made = self.client.create_run(self.experiment, tags={**tags, **parent}, run_name=name)
        return made.info.run_id, None

    def begin(self, name: str, folder: RunFolder) -> int | None:
        self.ids[name], before = self._open(name, {"wardround.kind": "run"})
        if before is not None:
            if before.info.status == "FINISHED":
                return None
            self.client.update_run(self.ids[name], status="RUNNING")
            return int(before.data.metrics.get("round", 0))
        from mlflow.entities import Param

        params = [Param(key, value[:6000]) for key, value in _parameters(folder).items()]
        for start in range(0, len(params), 100):  # as many as one request may hold
            self.client.log_batch(self.ids[name], params=params[start : start + 100])
        return 0

    def log(self, name: str, metrics: dict[str, float], round: int) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(
            self.ids[name], [Metric(key, value, now, round) for key, value in metrics.items()]
        )

    def end(self, name: str, folder: RunFolder, status: str, summary: dict[str, float]) -> None:
        self.log(name, {f"summary.{key}": value for key, value in summary.items()}, 0)
        for file in ARTEFACTS:
            if (folder.path / file).exists():
                self.client.log_artifact(self.ids[name], str(folder.path / file))
        state = {"finished": "FINISHED", "diverged": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[
            status
        ]
        self.client.set_tag(self.ids[name], "wardround.status", status)  # MLflow has no word for diverged
        self.client.set_terminated(self.ids[name], state)

    def close(self) -> None:
        if self.parent:
            self.client.set_terminated(self.parent, "FINISHED")


class _Wandb:
    """Offline unless WANDB_MODE says otherwise; runs of a matrix share its group. `wandb sync` sends them later."""

    def __init__(self, wandb: Any, matrix: str | None, out: Path) -> None:
        self.wandb, self.matrix, self.out = wandb, matrix, out
        self.runs: dict[str, Any] = {}

    def begin(self, name: str, folder: RunFolder) -> int | None:
        if self._done(name).exists():
            return None
        self.out.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        self.runs[name] = self.wandb.init(
            project=PROJECT, group=self.matrix, name=name, id=name, dir=str(self.out), mode=mode, reinit="create_new",
            config=_parameters(folder), settings=self.wandb.Settings(silent=True, x_disable_stats=True),
        )  # fmt: skip
        return 0

    def log(self, name: str, metrics: dict[str, float], round: int) -> None:
        self.runs[name].log(metrics, step=round)

    def end(self, name: str, folder: RunFolder, status: str, summary: dict[str, float]) -> None:
        run = self.runs.pop(name)
        run.summary.update({f"summary.{key}": value for key, value in summary.items()} | {"status": status})
        artefact = self.wandb.Artifact(f"run-{name}".replace("+", "-"), type="run")
        for file in ARTEFACTS:
            if (folder.path / file).exists():
                artefact.add_file(str(folder.path / file))
        run.log_artifact(artefact)
        is_finished = status in ("finished", "diverged")
        run.finish(exit_code=0 if is_finished else 1)
        if is_finished:
            self._done(name).touch()

    def _done(self, name: str) -> Path:
        """A mark that this run is tracked: offline there is nobody to ask."""
        return self.out / "wandb" / f"{name}.tracked"

    def close(self) -> None:
        for run in self.runs.values():
            run.finish(exit_code=1)
