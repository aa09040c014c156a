"""`wardround data`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from wardround import datasets
from wardround.cli.data import data_app as app
from wardround.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "heart"
    place.mkdir()
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = [f"{40 + i},1,1,120,200,0,0,150,0,1,1,0,3,{i % 2}" for i in range(20)]
        (place / f"processed.{name}.data").write_text("\n".join(lines))
    return place


def call(*words: str) -> str:
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_list_has_every_dataset():
    result = {row["name"]: row for row in json.loads(call("list", "--json"))}
    assert sorted(result) == datasets.available()
    assert result["mimic3"]["needs_preparation"] is True
    assert result["icu"]["needs_preparation"] is False
    assert all(name in call("list") for name in datasets.available())


def test_prepare_then_info(folder):
    assert json.loads(call("info", "heart", "--json"))["prepared"] is None
    said = call("prepare", "heart", "--source", str(folder))
    result = json.loads(call("info", "heart", "--json"))
    assert result["prepared"] in said
    assert result["facts"]["va"] == {"rows": 20, "disease": 10}
    assert "disease: 10" in call("info", "heart")


def test_options_are_written_as_in_a_config():
    result = json.loads(call("info", "isic2019", "size=64", "--json"))
    assert result["options"]["size"] == 64
    assert result["command"] == "wardround data prepare isic2019 --source DIR size=64"


def test_info_of_a_dataset_that_must_be_told_something():
    result = json.loads(call("info", "csv", "--json"))
    assert {"file", "label", "client", "drop"} <= set(result["options"])


def test_errors_are_left_to_the_command_line(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        call("prepare", "heart", "--source", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="unknown dataset 'hart'; did you mean 'heart'"):
        call("info", "hart")
    with pytest.raises(ConfigError, match="unknown key 'sice'"):
        call("info", "isic2019", "sice=64")
    with pytest.raises(ConfigError, match="key=value"):
        call("info", "isic2019", "64")


def test_importing_the_commands_stays_light():
    heavy = {"torch", "duckdb", "monai", "PIL", "sklearn"}
    code = f"import sys, wardround.cli.data; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.fixture
def stays(tmp_path):
    """A table as a German hospital exports it."""
    lines = [
        f"{40 + i * 7 % 50},5;{'Süd' if i % 2 else 'Köln'};{'ja' if i % 3 else 'nein'}" for i in range(90)
    ]
    path = tmp_path / "stays.csv"
    path.write_bytes(("Größe;Klinik;gestorben\n" + "\n".join(lines) + "\n").encode("latin-1"))
    return path


def test_check_says_what_a_table_holds(stays, here):
    said = here("data", "check", stays, "--label", "gestorben", "--client", "Klinik")
    assert said.returncode == 0, said.stderr
    assert "90 rows; separator semicolon, decimal comma, encoding Latin-1" in said.stdout
    assert "2 hospitals: Köln 45, Süd 45" in said.stdout
    plain = json.loads(
        here("data", "check", stays, "--label", "gestorben", "--drop", "Klinik", "--json").stdout
    )
    assert plain["rows"] == 90
    assert sum(plain["classes"]) == 90
    assert plain["files"][0]["decimal"] == ","


def test_check_says_with_its_code_that_a_run_would_fail(stays, here, tmp_path):
    said = here("data", "check", stays, "--label", "gestorben", "--out", tmp_path / "check.html")
    assert said.returncode == 1
    assert "column 'Klinik' holds words" in said.stdout
    assert "cannot use this table" in (tmp_path / "check.html").read_text()
    said = here("data", "check", stays, "--label", "gestroben")
    assert (said.returncode, said.stdout) == (2, "")
    assert "did you mean 'gestorben'" in said.stderr
    assert here("data", "check", tmp_path / "none.csv").returncode == 2
    assert "decimal: must be '.' or ','" in here("data", "check", stays, "--decimal", "x").stderr


def test_check_reads_the_configuration_of_a_run(stays, here, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        yaml.safe_dump(
            {"dataset": {"name": "csv", "file": str(stays), "label": "gestorben", "client": "Klinik"}}
        )
    )
    assert "2 hospitals" in here("data", "check", config).stdout
    config.write_text("dataset: {name: icu}\n")
    assert "is no csv table" in here("data", "check", config).stderr


def test_several_files_are_several_hospitals(stays, here, tmp_path):
    other = tmp_path / "other" / "stays.csv"
    other.parent.mkdir()
    other.write_bytes(stays.read_bytes())
    said = here("data", "check", stays, other, "--label", "gestorben", "--drop", "Klinik")
    assert "2 hospitals: " in said.stdout
    assert "other/stays 90" in said.stdout


def test_a_folder_is_its_tables(stays, here, tmp_path):
    (tmp_path / "more.tsv").write_text(
        "Größe\tgestorben\n" + "".join(f"{i}\t{'ja' if i % 2 else 'nein'}\n" for i in range(40))
    )
    said = here("data", "check", tmp_path, "--label", "gestorben", "--drop", "Klinik").stdout
    assert "more 40, stays 90" in said
    assert "separator tab" in said
    assert "separator tab" in here("data", "check", tmp_path / "more.tsv", "--separator", "tab").stdout
    (tmp_path / "empty").mkdir()
    assert "no .csv, .csv.gz or .tsv file in it" in here("data", "check", tmp_path / "empty").stderr


def test_the_smallest_hospital_is_the_partitions(stays, here, tmp_path):
    config = tmp_path / "run.yaml"
    section = {"name": "csv", "file": str(stays), "label": "gestorben", "client": "Klinik"}
    for least, warned in ((50, True), (20, False)):
        values = {"dataset": section, "partition": {"name": "natural", "min_size": least}}
        config.write_text(yaml.safe_dump(values, allow_unicode=True))
        assert (f"asks for {least}" in here("data", "check", config).stdout) == warned
