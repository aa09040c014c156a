"""`wardround trial`: every party has what it needs, and nothing of another's."""

import pytest

pytest.importorskip("flwr")

from wardround.datasets.schema import Schema
from wardround.errors import ConfigError
from wardround.flower.config import load_federation
from wardround.flower.hospital.join import Joiner
from wardround.flower.server.serve import Server
from wardround.flower.trial import NAMES, Trial


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "fed"
    Trial(folder, rounds=3).write()
    return folder


@pytest.mark.slow
def test_the_server_and_all_hospitals_pass_their_checks(trial):
    found = Server.read(trial / "server" / "fed.yaml", trial / "runs").check()
    assert [one for one in found if one.status == "failed" and "port" not in one.check] == []
    schema = Schema.load(trial / "server" / "schema.yaml")
    rows = []
    for name in NAMES:
        found = Joiner.read(trial / name / "hospital.yaml").check(schema)
        assert [one for one in found if one.status == "failed"] == []
        (data,) = [one for one in found if one.check == "data"]
        rows.append(data.text)
    assert len(set(rows)) == len(NAMES), "each has a table of its own"


def test_private_keys_stay_with_their_owner(trial):
    private = sorted(
        str(path.relative_to(trial))
        for path in trial.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    )
    assert private == sorted(
        ["server/certs/ca.key", "server/certs/server.key", *(f"{name}/certs/nodes/{name}" for name in NAMES)]
    )
    assert all((trial / path).stat().st_mode & 0o077 == 0 for path in private)


@pytest.mark.slow
def test_with_a_steward_the_server_gets_its_key_and_no_other(tmp_path):
    pytest.importorskip("tenseal")
    folder = tmp_path / "fed"
    Trial(folder, steward="steward.example.org", server="fed.example.org", listen="0.0.0.0").write()
    config = load_federation(folder / "server" / "fed.yaml")
    assert config.run.privacy.steward == "https://steward.example.org:8471"
    assert config.run.privacy.steward_keys == str(folder / "server" / "steward"), (
        "seen from the file's folder"
    )
    assert [path.name for path in (folder / "server" / "steward").iterdir()] == ["server.key"]
    keys = [(folder / name / "steward.key").read_bytes() for name in NAMES]
    assert len(set(keys)) == len(NAMES)
    assert (folder / "steward" / "steward.pem").exists()
    assert not (folder / "steward" / "ca.key").exists()


def test_mistakes(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        Trial(tmp_path).write()
    with pytest.raises(ConfigError, match="three hospitals or more"):
        Trial(tmp_path / "new", ["a", "b"]).write()
