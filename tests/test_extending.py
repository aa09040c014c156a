"""docs/extending.md kept true: its files, put into an empty folder, run by its own commands."""

import doctest
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from free_ports import free_ports

from wardround import aggregators, models, plugins
from wardround.experiments import find_runs, load_config
from wardround.flower.config import load_federation, load_hospital
from wardround.runs.folder import RunFolder
from wardround.runs.runner import run

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
FILES = {
    match[1]: match[0]
    for match in re.findall(r"^```(?:python|yaml)\n(# ([\w-]+\.(?:py|yaml))\n.*?)^```", PAGE, re.S | re.M)
}
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.S | re.M)
    for line in block.splitlines()
    if line.startswith("wardround ")
]
PATIENCE = 300.0
"""Seconds for a federation of three processes, on a machine that has other things to do."""


@pytest.fixture
def folder(tmp_path):
    """An empty folder, but for the files of the page."""
    folder = tmp_path / "study"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return folder


def wardround(folder, *arguments):
    command = [sys.executable, "-m", "wardround", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


def the_command(name):
    """The page's own command line of a subcommand."""
    (command,) = [command for command in COMMANDS if command[0] == name]
    return command


def test_the_page_shows_what_is_tested_here():
    expected = {"clipped_mean.py", "fading.py", "residual_mlp.py", "run.yaml", "matrix.yaml", "fed.yaml"}
    assert expected <= FILES.keys()
    assert {command[0] for command in COMMANDS} == {"run", "matrix", "redteam", "list", "serve", "join"}


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_examples_of_the_samples(name, folder, registries):
    plugin = plugins.load(folder / name)
    (module,) = [
        module for module in sys.modules.values() if getattr(module, "__file__", None) == plugin.source
    ]
    failures, tried = doctest.testmod(module)
    assert not failures
    assert tried or name == "residual_mlp.py"


def test_the_model_trains(folder, registries, tiny, tmp_path):
    values = {
        **tiny,
        "rounds": 2,
        "plugins": [str(folder / "residual_mlp.py")],
        "model": {"name": "residual-mlp"},
    }
    assert run(load_config(values), tmp_path / "runs").summary().status == "finished"
    for shape in models.registry.get("residual-mlp").example_shapes:
        assert models.create("residual-mlp").build(shape, 2)


def test_the_federations_files_are_valid(folder, registries):
    assert load_federation(folder / "fed.yaml").run.aggregator["name"] == "clipped-mean"
    assert load_hospital(folder / "north.yaml").attack["name"] == "fading"
    assert load_hospital(folder / "south.yaml").attack is None
    assert "clipped-mean" in aggregators.available()


@pytest.mark.slow
def test_run(folder):
    done = wardround(folder, *the_command("run"))
    assert done.returncode == 0, done.stderr
    (found,) = find_runs([folder / "runs"])
    assert found.summary().status == "finished"
    assert "clip_scale" in found.clients()[0].columns
    resumed = wardround(folder, "run", str(found.config_path))
    assert resumed.stdout.splitlines()[-1] == str(Path("runs") / found.path.name)


@pytest.mark.slow
def test_matrix_with_worker_processes(folder):
    command = the_command("matrix")
    assert command[-2:] == ["--jobs", "2"]
    done = wardround(folder, *command)
    assert done.returncode == 0, done.stderr
    runs = list(find_runs([folder / "runs"]))
    assert (
        sorted(found.config()["aggregator"]["name"] for found in runs)
        == ["clipped-mean"] * 2 + ["fedavg"] * 2
    )
    assert all(found.summary().status == "finished" for found in runs)


@pytest.mark.slow
def test_matrix_on_ray(folder):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    done = wardround(folder, *the_command("matrix"), "--executor", "ray")
    assert done.returncode == 0, done.stderr
    assert [found.summary().status for found in find_runs([folder / "runs"])] == ["finished"] * 4


@pytest.mark.slow
def test_redteam(folder):
    pytest.importorskip("optuna", reason="the extra 'redteam' is not installed")
    done = wardround(folder, *the_command("redteam"))
    assert done.returncode == 0, done.stderr
    (findings,) = folder.rglob("redteam.json")
    assert '"clipped-mean"' in findings.read_text()


@pytest.mark.slow
def test_list(folder):
    done = wardround(folder, *the_command("list"), "--json")
    assert done.returncode == 0, done.stderr
    assert '"name": "clipped-mean"' in done.stdout


@pytest.mark.slow
def test_a_federation_on_loopback(folder):
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    use_free_ports(folder)
    commands = [command for command in COMMANDS if command[0] in ("serve", "join")]
    assert len(commands) == 3
    processes = [start(folder, command) for command in commands]
    server = processes[0]
    try:
        deadline = time.monotonic() + PATIENCE
        while server.poll() is None:
            assert time.monotonic() < deadline, said(folder)
            for hospital in processes[1:]:
                assert hospital.poll() is None, said(folder)
            time.sleep(0.2)
        assert server.returncode == 0, said(folder)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(60)
    (path,) = (folder / "runs").glob("*/config.yaml")
    found = RunFolder(path.parent)
    assert found.summary().status == "finished"
    assert found.config()["plugins"][0]["source"] == str(folder / "clipped_mean.py")
    assert {record.client for record in found.clients()} == {"north", "south"}
    assert "clip_scale" in found.clients()[0].columns


def use_free_ports(folder):
    """The page's ports may be taken on this machine."""
    ports = dict(zip(("8000", "9094", "9095"), free_ports(3), strict=True))
    for name in ("fed.yaml", "north.yaml", "south.yaml"):
        text = FILES[name]
        for old, new in ports.items():
            text = re.sub(rf"\b{old}\b", str(new), text)
        assert text != FILES[name]
        assert yaml.safe_load(text)
        (folder / name).write_text(text)


def start(folder, arguments):
    """One of the page's commands; its output goes to a file."""
    with open(folder / "said.txt", "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "wardround", *arguments],
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


def said(folder):
    return (folder / "said.txt").read_text()
