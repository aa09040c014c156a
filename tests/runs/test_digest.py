"""What the lines of a run come to: made once, and never taken for the digest of other lines."""

import json
import shutil

import pytest
from stopped_runs import Stop

from wardround.analysis import analyze, load_runs, measure_all
from wardround.runs.config import load_config
from wardround.runs.digest import NAME, Digest, digest_of, make_digest, variation
from wardround.runs.folder import RunFolder
from wardround.runs.runner import run

ATTACK = {"name": "sign-flip", "fraction": 0.34, "start": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = {
        "dataset": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "iid", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "aggregator": {"name": "caac"},
        "attack": ATTACK,
        "rounds": 4,
    }
    return run(load_config(config), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def folder(finished, tmp_path):
    return RunFolder(shutil.copytree(finished.path, tmp_path / "copy"))


def from_lines(folder):
    return make_digest(folder.config(), folder.rounds(), folder.clients())


def stored(folder):
    return digest_of(folder, folder.config(), folder.summary_values()["files"])


def test_a_finished_run_has_the_digest_of_its_lines(folder):
    expected = from_lines(folder)
    assert expected.curve
    assert expected.shares
    assert expected.own
    assert expected.values["low_tpr"] is not None
    assert stored(folder) == expected


def test_an_analysis_reads_no_line_of_a_run_with_a_digest(folder, monkeypatch):
    before = measure_all(load_runs([folder.path]))[0].values
    read = []
    monkeypatch.setattr(RunFolder, "rounds", lambda self: read.append("rounds") or [])
    monkeypatch.setattr(RunFolder, "clients", lambda self: read.append("clients") or [])
    analysis = analyze(load_runs([folder.path]))
    assert analysis.measured[0].values == before
    assert read == []


def test_without_its_file_a_digest_is_made_from_the_lines(folder):
    expected = stored(folder)
    (folder.path / NAME).unlink()
    assert stored(folder) == expected


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"version": 1}', b"\xff"])
def test_a_damaged_digest_is_made_anew(folder, damage):
    expected = stored(folder)
    (folder.path / NAME).write_bytes(damage)
    assert stored(folder) == expected


@pytest.mark.parametrize(("key", "value"), [("curve", [[1, 1.0]]), ("version", 0)])
def test_an_edited_or_older_digest_is_made_anew(folder, key, value):
    expected = stored(folder)
    values = json.loads((folder.path / NAME).read_bytes())
    (folder.path / NAME).write_text(json.dumps({**values, key: value}))
    assert stored(folder) == expected


def test_a_digest_of_other_lines_does_not_count(folder):
    lines = folder.rounds_path.read_text().splitlines(keepends=True)
    folder.rounds_path.write_text("".join(lines[:3]))
    shorter = RunFolder(folder.path)
    shorter.write_summary(shorter.summary())
    assert [number for number, _ in stored(shorter).curve] == [1, 2, 3]


def test_a_digest_belongs_to_what_is_known_of_clients_and_attack(folder):
    config = folder.config()
    assert "flag_tpr_onset" in stored(folder).values
    config["record"]["attack"]["byzantine"] = []
    files = folder.summary_values()["files"]
    assert "flag_tpr_onset" not in digest_of(folder, config, files).values
    assert digest_of(folder, {**folder.config(), "seed": 9}, files) == stored(folder), (
        "a seed changes nothing"
    )


def test_a_run_that_has_not_finished_has_no_digest(tiny, tmp_path):
    def stop(record):
        raise Stop

    with pytest.raises(Stop):
        run(load_config(tiny), tmp_path, stop)
    assert not list(tmp_path.rglob(NAME))
    assert list(tmp_path.rglob("summary.json"))


def test_no_lines_come_to_nothing():
    digest = make_digest({}, [], [])
    assert isinstance(digest, Digest)
    assert digest.curve == []
    assert {value for name, value in digest.values.items() if name != "broken_rounds"} == {None}
    assert variation([], "score") is None
