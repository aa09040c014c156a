"""Presets to read, to copy, and to run with changes."""

import pytest
import yaml

from wardround.experiments import expand, presets


def test_a_preset_is_printed_as_it_is(here):
    result = here("preset", "show", "demo")
    assert result.returncode == 0
    assert yaml.safe_load(result.stdout) == presets.load_matrix("demo")[0]
    assert result.stdout.startswith("#"), "with the comment that says what it is"


def test_a_copy_runs_the_same_and_overwrites_nothing(here, tmp_path):
    file = tmp_path / "mine.yaml"
    assert here("preset", "copy", "demo", file).returncode == 0
    original, _ = presets.load_matrix("demo")
    copied, where = presets.load_matrix(str(file))
    assert [c.hash for c in expand(copied, where)] == [c.hash for c in expand(original)]
    file.write_text("mine")
    result = here("preset", "copy", "demo", file)
    assert result.returncode == 2
    assert "is there already" in result.stderr
    assert file.read_text() == "mine"


def test_an_unknown_preset_is_an_error_with_the_nearest_one(here, tmp_path):
    for arguments in (["show", "demoo"], ["copy", "demoo", tmp_path / "f.yaml"]):
        result = here("preset", *arguments)
        assert result.returncode == 2
        assert "no preset 'demoo'; did you mean 'demo'?" in result.stderr
    assert here("preset", "copy", "demo", tmp_path / "no" / "f.yaml").returncode == 2


@pytest.mark.slow
def test_a_matrix_with_changes(here, tiny, tmp_path):
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        yaml.safe_dump({"base": tiny, "axes": {"aggregator.name": ["fedavg", "median"]}, "seeds": [0, 1]})
    )
    result = here("matrix", matrix, "rounds=1", "seeds=[3]", "--jobs", "1", "--out", tmp_path / "r")
    assert result.returncode == 0, result.stderr
    configs = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("r/*/config.yaml")]
    assert sorted((c["aggregator"]["name"], c["seed"], c["rounds"]) for c in configs) == [
        ("fedavg", 3, 1), ("median", 3, 1),
    ]  # fmt: skip


def test_a_matrix_is_not_run_as_one_run_and_the_other_way_round(here, config, tmp_path):
    matrix = tmp_path / "m.yaml"
    matrix.write_text("base: {rounds: 1}\nseeds: [0, 1]\n")
    for arguments, use in (
        (["run", matrix], f"use: wardround matrix {matrix}"),
        (["run", "demo"], "use: wardround matrix demo"),
        (["matrix", config], f"use: wardround run {config}"),
    ):
        result = here(*arguments)
        assert result.returncode == 2
        assert use in result.stderr


def test_a_run_says_what_it_predicts_before_it_starts(here, config, tmp_path):
    result = here("run", config, "rounds=1", "--out", tmp_path / "r")
    assert result.stderr.startswith("synthetic: predicts 'positive' (against 'negative'), ")
    again = here("run", config, "rounds=1", "--out", tmp_path / "r")
    assert "predicts" not in again.stderr, "nothing is run"


@pytest.mark.slow
def test_a_matrix_prints_published_figures_beside_its_own(here, tiny, tmp_path):
    matrix = tmp_path / "m.yaml"
    figures = [{"label": "theirs", "where": {"aggregator.name": "fedavg"}, "value": 0.123}]
    section = {"source": "somebody (2020)", "tolerance": 0.02, "figures": figures}
    values = {"base": {**tiny, "rounds": 1}, "seeds": [0], "published": section}
    matrix.write_text(yaml.safe_dump(values))
    result = here("matrix", matrix, "--out", tmp_path / "r", "--jobs", 1)
    assert result.returncode == 0, result.stderr
    assert "somebody (2020)" in result.stdout
    assert "theirs" in result.stdout
    assert "0.123" in result.stdout
    section["measure"] = "aurok"
    matrix.write_text(yaml.safe_dump(values))
    result = here("matrix", matrix, "--out", tmp_path / "never")
    assert result.returncode == 2
    assert "no measure 'aurok'; did you mean 'auroc'" in result.stderr
    assert not (tmp_path / "never").exists()
