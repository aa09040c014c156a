"""The plain Flower app folder, and Flower's own `flwr run` on it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from typer.testing import CliRunner

from wardround.cli import app
from wardround.errors import ConfigError
from wardround.experiments.folder import RunFolder
from wardround.flower.config import load_federation
from wardround.flower.scaffold import write_app


def test_flower_takes_the_folder(tmp_path):
    folder = write_app(tmp_path / "app")
    assert len(build_fab_from_disk(folder)) < 100_000
    assert load_federation(folder / "fed.yaml").clients == 4


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="--force"):
        write_app(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "fed.yaml").write_text("rounds: 7\n")
    write_app(tmp_path, force=True)
    assert (tmp_path / "fed.yaml").read_text() == "rounds: 7\n"


def test_a_configuration_of_ones_own_is_checked_first(tmp_path):
    (tmp_path / "fed.yaml").write_text("rounds: many\n")
    told = CliRunner().invoke(
        app, ["flower", "init", str(tmp_path / "app"), "--config", str(tmp_path / "fed.yaml")]
    )
    assert isinstance(told.exception, ConfigError)
    assert not (tmp_path / "app").exists()


@pytest.mark.slow
def test_flwr_run_runs_it(tmp_path):
    pytest.importorskip("ray")
    folder, home = write_app(tmp_path / "app"), tmp_path / "flwr"
    programs = Path(os.sys.executable).parent
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    command = [str(programs / "flwr"), "run", str(folder), "local", "--federation-config", "num-supernodes=4"]
    try:
        told = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        assert told.returncode == 0, told.stdout + told.stderr
        deadline = time.monotonic() + 400
        while not (done := list((folder / "runs").glob("*/summary.json"))):
            assert time.monotonic() < deadline, told.stdout + told.stderr
            time.sleep(0.5)
        summary = RunFolder(done[0].parent).summary()
        assert summary["status"] == "finished"
        assert summary["rounds"] == 3
    finally:
        for pid in _left_behind(str(tmp_path)):
            os.kill(pid, signal.SIGTERM)


def _left_behind(mark):
    """`flwr run` starts a SuperLink that stays; it and what it started have our FLWR_HOME in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"FLWR_HOME={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
