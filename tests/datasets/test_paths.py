"""Files of a dataset are seen from the configuration's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from wardround.datasets.paths import anchored
from wardround.errors import RenamedWarning
from wardround.flower.config import load_hospital
from wardround.runs.config import read_yaml

TABLE = "age,died\n" + "\n".join(f"{40 + i},{i % 2}" for i in range(20)) + "\n"


def test_every_key_with_a_path(tmp_path):
    section = {
        "name": "omop",
        "schema": "s.yaml",
        "databases": {"a": "duckdb:///x.duckdb", "b": "postgresql://r@h/d", "c": "y.duckdb"},
        "files": {"a": "a.csv", "b": "/b.csv"},
    }
    section = anchored({"base": {"dataset": section}}, Path("study"))["base"]["dataset"]
    assert section["schema"] == "study/s.yaml"
    assert section["databases"] == {
        "a": "duckdb:///study/x.duckdb", "b": "postgresql://r@h/d", "c": "study/y.duckdb",
    }  # fmt: skip
    assert section["files"] == {"a": "study/a.csv", "b": "/b.csv"}


def test_a_schema_that_is_written_out_and_other_datasets_stay_as_they_are():
    values = {"dataset": {"name": "csv", "schema": {"columns": []}, "file": 3}, "rounds": 2}
    assert anchored(values, Path("study")) == values
    assert anchored({"dataset": "icu"}, Path("study")) == {"dataset": "icu"}


def test_a_run_and_a_hospital_find_the_file_beside_their_yaml(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "stays.csv").write_text(TABLE)
    yaml = tmp_path / "study" / "run.yaml"
    yaml.write_text("name: one\ndataset: {name: csv, file: stays.csv, label: died}\n")
    monkeypatch.chdir(tmp_path)
    assert read_yaml(Path("study/run.yaml"))["dataset"]["file"] == "study/stays.csv"
    assert load_hospital(Path("study/run.yaml")).dataset["file"] == "study/stays.csv"
    monkeypatch.chdir(tmp_path / "study")
    assert read_yaml(Path("run.yaml"))["dataset"]["file"] == "stays.csv"  # the run keeps its hash


def test_a_file_in_the_present_folder_is_found_for_one_more_release(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "stays.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    values = {"dataset": {"name": "csv", "file": "stays.csv"}}
    with pytest.warns(RenamedWarning, match=r"dataset\.file: stays\.csv is now looked for in the folder of"):
        assert anchored(values, Path("study")) == values
    assert anchored({"dataset": {"file": "no.csv"}}, Path("study"))["dataset"]["file"] == "study/no.csv"
