"""The command line as its users meet it: real processes, good input and bad."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from wardround.cli.main import main

TINY = {
    "name": "tiny",
    "dataset": {"name": "synthetic", "samples": 400, "features": 6},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 4,
}


def wardround(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "wardround", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


@pytest.fixture
def here(monkeypatch, capsys):
    """The same without a new process, where only the words matter."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["wardround", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, out, err)

    return call


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def test_help_and_version():
    told = wardround("--help")
    assert told.returncode == 0
    for command in ("demo", "run", "matrix", "report", "list"):
        assert command in told.stdout
    assert wardround("--version").stdout.startswith("wardround 0.")


@pytest.mark.slow
def test_bad_input_in_a_real_process(tmp_path):
    told = wardround("run", "nowhere.yaml", cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr == "wardround: nowhere.yaml: no such file\n"


@pytest.mark.slow
def test_run_then_report(config, tmp_path):
    told = wardround("run", config, "aggregator.name=caac", "seed=3", "--out", tmp_path / "r")
    assert told.returncode == 0, told.stderr
    (folder,) = (tmp_path / "r").iterdir()
    assert told.stdout.splitlines()[-1] == str(folder)
    assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 3
    page = tmp_path / "page.html"
    told = wardround("report", tmp_path / "r", "--out", page)
    assert told.returncode == 0, told.stderr
    assert "caac" in page.read_text()


def test_the_record_of_a_run_is_a_configuration(config, tmp_path, here):
    here("run", config, "--out", tmp_path / "r")
    (folder,) = (tmp_path / "r").iterdir()
    told = here("run", folder / "config.yaml", "--out", tmp_path / "again", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["folder"].endswith(folder.name), "the same run, by its hash"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["run", "CONFIG", "aggregator.name=krumm"], "unknown aggregator 'krumm'"),
        (["run", "CONFIG", "partition.alpha=-1"], "alpha: must be greater than 0, got -1"),
        (["run", "CONFIG", "partition.clients=0"], "clients: must be greater than or equal to 1, got 0"),
        (["run", "CONFIG", "roundz=3"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (["run", "CONFIG", "seed"], "an override is written key=value"),
        (["run", "CONFIG", "dataset.samples=20"], "partition: 6 clients"),
        (["run"], "Missing argument"),
        (["rnu"], "No such command 'rnu'"),
        (["run", "CONFIG", "--outt", "x"], "No such option"),
        (["list", "agregators"], "'agregators' is not one of"),
        (["matrix", "demoo"], "did you mean 'demo'"),
        (["matrix", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", "EMPTY"], "no run in it"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, config, tmp_path, here, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    before = sorted(tmp_path.rglob("*"))
    places = {"CONFIG": str(config), "EMPTY": str(empty)}
    monkeypatch.chdir(tmp_path)
    told = here(*[places.get(a, a) for a in arguments])
    assert told.returncode == 2
    assert message in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1
    assert told.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"


@pytest.mark.parametrize(
    "kind", ["aggregators", "attacks", "datasets", "models", "partitions", "presets", "scenarios"]
)
def test_list_for_people_and_programs(kind, here):
    assert here("list", kind).returncode == 0
    members = json.loads(here("list", kind, "--json").stdout)
    assert members
    assert all(member["summary"] for member in members), "everything says what it is"


def test_list_attacks_tells_knowledge_and_defaults(here):
    members = {m["name"]: m for m in json.loads(here("list", "attacks", "--json").stdout)}
    assert members["sign-flip"]["knowledge"] == ["own"]
    assert members["sign-flip"]["parameters"] == {"scale": 10.0}


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(config, tmp_path):
    command = [
        sys.executable,
        "-m",
        "wardround",
        "run",
        str(config),
        "rounds=1000",
        "--out",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path).glob("r/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "r").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    done = (folder / "rounds.jsonl").read_bytes().count(b"\n")
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0
    assert 0 < done < 1000
    assert (folder / "rounds.jsonl").read_bytes().count(b"\n") == 1000


@pytest.mark.slow
def test_the_demo_in_short(tmp_path):
    """The demo's own matrix with fewer rounds and one seed: the table, and that every run is there."""
    from wardround.experiments import presets

    values, _ = presets.load_matrix("demo")
    values["base"]["rounds"] = 17
    values["seeds"] = [0]
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(values))
    told = wardround("matrix", path, "--out", tmp_path / "r", "--jobs", 2)
    assert told.returncode == 0, told.stderr
    assert "sign-flip" in told.stdout
    summaries = [json.loads(p.read_text()) for p in (tmp_path / "r").glob("*/summary.json")]
    assert len(summaries) == 2 * len(values["axes"]["aggregator.name"])
    assert all(summary["status"] == "finished" for summary in summaries)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the rule with --aggregator"),
        (["--aggregator", "krun"], "did you mean 'krum'"),
        (["--aggregator", "krum", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--aggregator", "krum", "--seeds", "1,x"], "--seeds: whole numbers with commas between"),
        (["--aggregator", "krum", "--seeds", "1,1"], "a seed occurs twice"),
        (["--aggregator", "krum", "--fraction", "2"], "max_fraction: must be less than or equal to 1"),
        (["--aggregator", "krum", "folder"], "folders go with --leaderboard"),
        (["--leaderboard"], "takes the folders of red teams"),
        (["--leaderboard", "nowhere"], "nowhere: no redteam.json in it"),
    ],
)
def test_a_red_team_that_cannot_begin(here, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = here("redteam", *arguments)
    assert told.returncode == 2
    assert words in told.stderr
    assert told.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written"
