"""The command line as its users meet it: good input and bad."""

import subprocess
import sys

import pytest


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
