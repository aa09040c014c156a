"""The plain Flower app folder, and Flower's own `flwr run` on it."""

import re
import subprocess
import time
import tomllib
import urllib.request

import pytest

pytest.importorskip("flwr")

from free_ports import free_port
from typer.testing import CliRunner

from wardround.cli.main import app
from wardround.errors import ConfigError
from wardround.flower.config import load_federation
from wardround.flower.environment import child_environment
from wardround.flower.processes import Processes, console_script
from wardround.flower.scaffold import write_app
from wardround.runs.folder import RunFolder

RAY_TOO_SLOW = "The current node timed out during startup"
"""Ray gives up after 30 s, which no option changes: on a busy machine it is started again."""


def test_flower_takes_the_folder(tmp_path):
    from flwr.cli.build import build_fab_from_disk  # slow to import, as Flower's command line is

    folder = write_app(tmp_path / "app")
    assert len(build_fab_from_disk(folder)) < 100_000
    assert load_federation(folder / "fed.yaml").clients == 4


def test_flower_has_nothing_to_install_for_it(tmp_path):
    """Flower installs an app's dependencies anew for each run, from an index that need not have wardround."""
    project = tomllib.loads((write_app(tmp_path / "app") / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []


def test_programs_that_are_not_on_the_path_are_said(tmp_path, monkeypatch):
    call = ["flower", "init", "--force", str(tmp_path / "app")]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "first: source " in CliRunner().invoke(app, call).output
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert "source " not in CliRunner().invoke(app, call).output


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
    result = CliRunner().invoke(
        app, ["flower", "init", str(tmp_path / "app"), "--config", str(tmp_path / "fed.yaml")]
    )
    assert isinstance(result.exception, ConfigError)
    assert not (tmp_path / "app").exists()


@pytest.mark.slow
def test_flwr_run_runs_it(tmp_path):
    """On a SuperLink of our own: the one that `flwr run` would start has 15 s to be up, and stays behind."""
    pytest.importorskip("ray")
    folder, home, port = write_app(tmp_path / "app"), tmp_path / "flwr", free_port()
    environment = child_environment(home)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    superlink = [console_script("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1"]
    run = [console_script("flwr"), "run", str(folder), "here", "--federation-config", "num-supernodes=4"]
    with Processes(tmp_path, environment) as processes:
        processes.start("superlink", [*superlink, "--port", str(port)])
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), processes)
        for _ in range(5):
            said = run_to_its_end(run, environment, processes)
            if RAY_TOO_SLOW not in said:
                break
        done = list((folder / "runs").glob("*/summary.json"))
        assert done, said
        summary = RunFolder(done[0].parent).summary()
    assert summary.status == "finished"
    assert summary.rounds == 3


def run_to_its_end(run, environment, processes):
    """Return what the run has written to Flower's log."""
    result = command(run, environment)
    assert result.returncode == 0, result.stdout + result.stderr
    number = re.findall(r"Created run (\d+)", log(processes))[-1]
    wait_until(lambda: re.search(rf"Finished task \d+ of run {number}", log(processes)), processes)
    return command([console_script("flwr"), "log", number, "here", "--show"], environment).stdout


def log(processes):
    return processes.log("superlink").read_text(errors="replace")


def command(words, environment):
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=10):
            return True
    except OSError:
        return False


def wait_until(condition, processes):
    deadline = time.monotonic() + 400
    while not (result := condition()):
        processes.check()
        assert time.monotonic() < deadline, processes.log_tail("superlink")
        time.sleep(0.5)
    return result
