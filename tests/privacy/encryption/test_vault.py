"""The steward's folder."""

import pytest

from wardround.privacy.encryption.vault import Vault

pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")


def test_the_stewards_folder_and_all_in_it_are_its_owners_alone(open_umask, mode_of, tmp_path):
    vault = Vault(tmp_path / "deep" / "vault")
    vault.make(["a", "b", "c"], "encrypted-fedmed")
    vault.log({"event": "opened"})
    paths = sorted(vault.folder.rglob("*"))
    assert {path.name for path in paths} >= {"keys", "server.key", "client-a.key", "openings.jsonl"}
    assert mode_of(vault.folder) == 0o700
    for path in paths:
        assert mode_of(path) == (0o700 if path.is_dir() else 0o600), path.name
