import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from wardround import aggregators
from wardround.cli.privacy import mount
from wardround.errors import ConfigError, ParameterError
from wardround.experiments import load_config, run
from wardround.privacy.explain import PARTIES, TABLE
from wardround.privacy.params import MODES, rules_for


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.callback()(lambda: None)
    mount(app)
    return app


def ask(app, *arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_every_mode_is_explained_for_every_party(app):
    assert set(TABLE) == set(MODES)
    for mode in MODES:
        told = ask(app, "privacy", "explain", mode)
        assert all(f"  {party}: " in told for party in PARTIES)
        assert "trust: " in told
    rules = [aggregators.registry.get(name) for name in aggregators.available()]
    for mode in MODES[1:]:
        assert any(rule in TABLE[mode]["what it is"] for rule in rules_for(mode, rules))
    with pytest.raises(ParameterError, match="did you mean 'encrypted-caac'"):
        ask(app, "privacy", "explain", "encrypted-cac")


@pytest.fixture(scope="module")
def caac_run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs"), "caac")


def test_profiles_are_shown_and_looking_is_logged(app, caac_run):
    told = json.loads(ask(app, "profiles", "show", caac_run.path, "--reason", "audit", "--json"))
    assert set(told) == {f"hospital-0{i}" for i in range(5)}
    last = {line.client: line for line in caac_run.clients()}
    assert all(told[client]["reliability"] == last[client]["reliability"] for client in told)
    assert all(told[client]["rounds"] == 2 for client in told)
    assert "hospital-04" in ask(app, "profiles", "show", caac_run.path, "--reason", "once more")
    lines = [json.loads(line) for line in (caac_run.path / "access.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["audit", "once more"]
    assert all(line["user"] and line["time"] for line in lines)


def small_run(out, rule, rounds=2):
    config = {
        "dataset": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "dirichlet", "clients": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "aggregator": {"name": rule},
        "rounds": rounds,
    }
    return run(load_config(config), out)


@pytest.mark.parametrize(
    "rule",
    [
        name
        for name in aggregators.available()
        if aggregators.registry.get(name).profile_table is not aggregators.Aggregator.profile_table
    ],
)
def test_every_rule_that_keeps_profiles_shows_them(app, tmp_path, rule):
    folder = small_run(tmp_path, rule)
    table = json.loads(ask(app, "profiles", "show", folder.path, "--reason", "audit", "--json"))
    assert set(table) == {f"hospital-0{i}" for i in range(5)}
    text = ask(app, "profiles", "show", folder.path, "--reason", "audit")
    first = next(iter(table.values()))
    assert all(column in text for column in first)
    assert len(text.splitlines()) == 6
    assert len({len(line) for line in text.splitlines()}) == 1, "columns stand under each other"


def test_profiles_are_not_shown_without_a_reason_or_a_log(app, caac_run, tmp_path):
    with pytest.raises(ConfigError, match="why you look"):
        ask(app, "profiles", "show", caac_run.path, "--reason", " ")
    log = caac_run.path / "access.jsonl"
    log.unlink(missing_ok=True)
    log.mkdir()
    with pytest.raises(ConfigError, match="not shown unlogged"):
        ask(app, "profiles", "show", caac_run.path, "--reason", "audit")
    log.rmdir()
    with pytest.raises(ConfigError, match="not a run folder"):
        ask(app, "profiles", "show", tmp_path, "--reason", "audit")


def test_a_rule_without_profiles_has_none_to_show(app, tmp_path):
    config = {
        "dataset": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "dirichlet", "clients": 3},
        "rounds": 1,
    }
    folder = run(load_config(config), tmp_path)
    with pytest.raises(ConfigError, match="no profiles in it, aggregator 'fedavg' keeps none"):
        ask(app, "profiles", "show", folder.path, "--reason", "audit")


def test_a_steward_says_what_is_wrong_with_its_options(app, tmp_path):
    with pytest.raises(ConfigError, match="no steward's folder"):
        ask(app, "steward", tmp_path / "none")
    with pytest.raises(ConfigError, match="max_share"):
        ask(app, "steward", tmp_path / "new", "--clients", "3", "--max-share", "2")
    with pytest.raises(ConfigError, match="at least two"):
        ask(app, "steward", tmp_path / "new", "--clients", "alone")
    assert not (tmp_path / "new").exists()


def test_the_commands_are_light_to_import():
    code = (
        "import sys; import wardround.cli.privacy; "
        "print({'torch', 'numpy', 'tenseal', 'opacus'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
