"""`wardround profiles show`: what every rule with profiles remembers, and that looking is logged."""

import json

import pytest
from typer.testing import CliRunner

from wardround import aggregators
from wardround.cli.main import app
from wardround.errors import ConfigError
from wardround.experiments import load_config, run


def show(folder, *options):
    result = CliRunner().invoke(
        app, ["profiles", "show", str(folder), *map(str, options)], catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


def small_run(out, rule, rounds=2):
    config = {
        "dataset": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "dirichlet", "clients": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "aggregator": {"name": rule},
        "rounds": rounds,
    }
    return run(load_config(config), out)


@pytest.fixture(scope="module")
def caac_run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs"), "caac")


def test_profiles_are_shown_and_looking_is_logged(caac_run):
    profiles = json.loads(show(caac_run.path, "--reason", "audit", "--json"))
    assert set(profiles) == {f"hospital-0{i}" for i in range(5)}
    last = {line.client: line for line in caac_run.clients()}
    assert all(profiles[client]["reliability"] == last[client]["reliability"] for client in profiles)
    assert all(profiles[client]["rounds"] == 2 for client in profiles)
    assert "hospital-04" in show(caac_run.path, "--reason", "once more")
    lines = [json.loads(line) for line in (caac_run.path / "access.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["audit", "once more"]
    assert all(line["user"] and line["time"] for line in lines)


@pytest.mark.parametrize(
    "rule",
    [
        name
        for name in aggregators.available()
        if aggregators.registry.get(name).profile_table is not aggregators.Aggregator.profile_table
    ],
)
def test_every_rule_that_keeps_profiles_shows_them(tmp_path, rule):
    folder = small_run(tmp_path, rule)
    table = json.loads(show(folder.path, "--reason", "audit", "--json"))
    assert set(table) == {f"hospital-0{i}" for i in range(5)}
    text = show(folder.path, "--reason", "audit")
    first = next(iter(table.values()))
    assert all(column in text for column in first)
    assert len(text.splitlines()) == 6
    assert len({len(line) for line in text.splitlines()}) == 1, "columns stand under each other"


def test_profiles_are_not_shown_without_a_reason_or_a_log(caac_run, tmp_path):
    with pytest.raises(ConfigError, match="why you look"):
        show(caac_run.path, "--reason", " ")
    log = caac_run.path / "access.jsonl"
    log.unlink(missing_ok=True)
    log.mkdir()
    with pytest.raises(ConfigError, match="not shown unlogged"):
        show(caac_run.path, "--reason", "audit")
    log.rmdir()
    with pytest.raises(ConfigError, match="not a run folder"):
        show(tmp_path, "--reason", "audit")


def test_a_rule_without_profiles_has_none_to_show(tmp_path):
    folder = small_run(tmp_path, "fedavg", rounds=1)
    with pytest.raises(ConfigError, match="no profiles in it, aggregator 'fedavg' keeps none"):
        show(folder.path, "--reason", "audit")


def test_a_rule_of_an_absent_plug_in_is_an_error_that_names_it(caac_run, tmp_path):
    folder = small_run(tmp_path, "caac")
    config = folder.config()
    folder.write_config({**config, "aggregator": {**config["aggregator"], "name": "their-own-rule"}})
    with pytest.raises(ConfigError, match="unknown aggregator 'their-own-rule'"):
        show(folder.path, "--reason", "audit")
