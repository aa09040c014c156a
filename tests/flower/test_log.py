"""The log of `serve` and `join`: text or JSON lines, and rotation."""

import json

import pytest

pytest.importorskip("flwr")

from wardround.errors import ConfigError
from wardround.flower.log import FILE_VARIABLE, FORMAT_VARIABLE, Log, rotate


def test_text_goes_to_the_terminal_and_with_the_time_to_the_file(tmp_path, capsys):
    log = Log("join", file=tmp_path / "join.log")
    log("hospital-a: joining")
    assert capsys.readouterr().out == "hospital-a: joining\n"
    stamp, text = (tmp_path / "join.log").read_text().split(" ", 1)
    assert stamp.endswith("Z")
    assert text == "hospital-a: joining\n"


def test_json_lines(tmp_path, capsys):
    log = Log("serve", as_json=True, file=tmp_path / "serve.log")
    log("  round 3", "round", {"round": 3, "flagged": {"b": "score 9"}})
    log("ende: ü")
    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    assert lines[0] | {"time": ""} == {
        "time": "", "program": "serve", "event": "round", "message": "round 3", "round": 3,
        "flagged": {"b": "score 9"},
    }  # fmt: skip
    assert lines[1]["message"] == "ende: ü"


def test_the_environment_hands_it_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "x.log"))
    Log("join")("hello")
    assert json.loads(capsys.readouterr().out)["message"] == "hello"
    assert json.loads((tmp_path / "x.log").read_text())["program"] == "join"


def test_a_file_is_rotated_and_the_oldest_is_removed(tmp_path, capsys):
    log = Log("serve", file=tmp_path / "s.log", largest=200)
    for number in range(60):
        log(f"line {number:03}")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["s.log", "s.log.1", "s.log.2", "s.log.3", "s.log.4", "s.log.5"]
    assert all(path.stat().st_size < 300 for path in tmp_path.iterdir())
    assert (tmp_path / "s.log").read_text().splitlines()[-1].endswith("line 059")
    before = (tmp_path / "s.log.1").read_text()
    rotate(tmp_path / "s.log", 10**6)
    assert (tmp_path / "s.log.1").read_text() == before
    rotate(tmp_path / "not there", 1)


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"--log-file: .*cannot be written"):
        Log("serve", file=tmp_path / "no" / "s.log")
