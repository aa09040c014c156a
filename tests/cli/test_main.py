"""The command line as its users meet it: good input and bad."""

import re
import shutil
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_help_and_version(wardround):
    result = wardround("--help")
    assert result.returncode == 0
    for command in ("demo", "run", "matrix", "report", "list"):
        assert command in result.stdout
    assert wardround("--version").stdout.startswith("wardround 0.")


@pytest.mark.slow
def test_bad_input_in_a_real_process(wardround, tmp_path):
    result = wardround("run", "nowhere.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "wardround: nowhere.yaml: no such file\n"


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
    result = here(*[places.get(a, a) for a in arguments])
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"


@pytest.mark.usefixtures("registries")
def test_a_warning_is_one_plain_line(config, here, tmp_path):
    """Python would put a path inside pydantic before it, and a line of code after it."""
    plugin = tmp_path / "renamed.py"
    plugin.write_text(
        "from wardround import aggregators\n"
        "from wardround.registry import Parameters\n"
        "@aggregators.register('renamed')\n"
        "class Renamed(aggregators.registry.get('mean')):\n"
        "    class Params(Parameters):\n"
        "        renamed = {'hearings': 'contradiction_rounds'}\n"
        "        contradiction_rounds: int = 3\n"
    )
    section = [f"plugins=[{plugin}]", "aggregator.name=renamed", "aggregator.hearings=4", "rounds=1"]
    result = here("run", config, *section, "--out", tmp_path / "r")
    assert result.returncode == 0
    (line,) = [line for line in result.stderr.splitlines() if "hearings" in line]
    assert line.startswith("wardround: warning: parameter 'hearings' is now called 'contradiction_rounds'")
    assert "pydantic" not in result.stderr
    assert ".py" not in result.stderr


def test_a_damaged_run_is_one_line_and_exit_code_2(config, here, tmp_path):
    assert here("run", config, "rounds=3", "--out", tmp_path / "r").returncode == 0
    (rounds,) = tmp_path.glob("r/*/rounds.jsonl")
    lines = rounds.read_text().splitlines(keepends=True)
    rounds.write_text(lines[0] + lines[2])
    for command in (["analyze"], ["report", "--out", tmp_path / "page.html"]):
        result = here(*command, tmp_path / "r")
        assert result.returncode == 2
        assert "rounds.jsonl: damaged" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_copies_are_said_on_the_terminal(config, here, tmp_path):
    assert here("run", config, "rounds=1", "--out", tmp_path / "r").returncode == 0
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    result = here("analyze", tmp_path / "r", tmp_path / "copy")
    assert "wardround: warning: 1 run folder holds the same experiment as another one" in result.stderr
    assert "1 finished run." in result.stdout


def test_a_run_that_diverges_says_so(config, here, tmp_path):
    result = here("run", config, "rounds=2", "training.lr=1e20", "--out", tmp_path / "r")
    assert re.match(r"diverged after 2 rounds \(.* finite.*, since round 1\)", result.stdout)


@pytest.mark.parametrize(
    ("typed", "offered"), [("wardround ma", "matrix"), ("wardround list agg", "aggregators")]
)
def test_the_shell_completes_what_is_typed(wardround, monkeypatch, typed, offered):
    monkeypatch.setenv("_WARDROUND_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    assert wardround().stdout.split() == [offered]


def test_completion_can_be_installed(wardround, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = wardround("--install-completion", "bash")
    assert result.returncode == 0, result.stderr
    assert "wardround" in (tmp_path / ".bash_completions" / "wardround.sh").read_text()


def test_help_needs_no_heavy_package():
    code = (
        "import sys; sys.argv = ['wardround', '--help']\n"
        "from wardround.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'numpy', 'pydantic', 'yaml', 'starlette'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "set()"
    assert "profiles" in result.stdout
