"""Keys of hospitals that are added, replaced and revoked while the federation runs."""

import shutil

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from wardround.cli.main import app
from wardround.errors import ConfigError
from wardround.flower.certificates import make_node_keys
from wardround.flower.server.key_folder import KeyFolder, add_key, fingerprint, revoke_key


@pytest.fixture
def nodes(tmp_path):
    make_node_keys(tmp_path / "certs", ["a", "b"])
    make_node_keys(tmp_path / "new", ["a", "c"])
    return tmp_path / "certs" / "nodes"


@pytest.fixture
def watched(nodes):
    now = [0.0]
    folder = KeyFolder(nodes, lambda: now[0])

    def look():
        now[0] += 2.0
        before = folder.keys
        return folder.changed() and folder.describe_change(before)

    return folder, look, now


def test_changes_are_seen_once(nodes, watched, tmp_path):
    folder, look, _ = watched
    assert look() is False
    assert add_key(nodes, tmp_path / "new" / "nodes" / "c.pub") == "c"
    assert look() == "new c"
    assert look() is False
    old = folder.keys["a"]
    add_key(nodes, tmp_path / "new" / "nodes" / "a.pub", replace=True)
    assert look() == "replaced a"
    assert folder.keys["a"] != old
    revoke_key(nodes, "b")
    assert look() == "revoked b"
    assert sorted(folder.keys) == ["a", "c"]
    assert (nodes / "b.revoked").exists()


def test_a_look_is_taken_once_a_second(nodes, watched):
    folder, look, now = watched
    look()
    revoke_key(nodes, "b")
    now[0] += 0.5
    assert folder.changed() is False
    now[0] += 0.6
    assert folder.changed() is True


def test_a_file_that_is_no_key_changes_nothing(nodes, watched, tmp_path):
    folder, look, _ = watched
    (nodes / "c.pub").write_text("half a ke")
    assert look() is False
    assert "c.pub: not a public key" in folder.problem
    assert sorted(folder.keys) == ["a", "b"]
    shutil.copy(tmp_path / "new" / "nodes" / "c.pub", nodes)
    assert look() == "new c"
    assert folder.problem is None


def test_mistakes(nodes, tmp_path):
    with pytest.raises(ConfigError, match="has another key already; --replace"):
        add_key(nodes, tmp_path / "new" / "nodes" / "a.pub")
    with pytest.raises(ConfigError, match=r"a file NAME\.pub"):
        add_key(nodes, tmp_path / "new" / "nodes" / "c")
    shutil.copy(nodes / "a.pub", tmp_path / "d.pub")
    with pytest.raises(ConfigError, match=r"the same key as a\.pub"):
        add_key(nodes, tmp_path / "d.pub")
    (tmp_path / "e.pub").write_text("hello")
    with pytest.raises(ConfigError, match=r"e\.pub: not a public key"):
        add_key(nodes, tmp_path / "e.pub")
    with pytest.raises(ConfigError, match=r"no key of 'x'; .*known: a, b"):
        revoke_key(nodes, "x")
    revoke_key(nodes, "b")
    with pytest.raises(ConfigError, match="a is the only hospital"):
        revoke_key(nodes, "a")


def test_the_commands(nodes, tmp_path):
    config = tmp_path / "fed.yaml"
    config.write_text("federation: {clients: 2, node_keys: certs/nodes}\n")

    def run(*words):
        return CliRunner().invoke(app, ["keys", words[0], str(config), *map(str, words[1:])])

    new = tmp_path / "new" / "nodes" / "c.pub"
    assert f"compare by telephone: {fingerprint(new)}" in run("add", new).stdout
    assert [line.split()[1] for line in run("list").stdout.splitlines()] == ["a", "b", "c"]
    assert run("revoke", "b").stdout == "b is not let in from now on\n"
    assert run("revoke", "b").exit_code != 0
