"""`wardround data`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
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
