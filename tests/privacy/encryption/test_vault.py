"""The steward's folder."""

import shutil

import numpy as np
import pytest

from wardround.errors import ConfigError
from wardround.privacy.encryption.ckks import CkksPublic
from wardround.privacy.encryption.pads import pad_for
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import PADDED_SUMS
from wardround.privacy.encryption.vault import Vault, client_keys, public_context

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


CLIENTS = ("a", "b", "c")
UPDATES = {client: np.full(4, 0.1 * place) for place, client in enumerate(CLIENTS, 1)}
THIRDS = dict.fromkeys(CLIENTS, 0.25)


def order_of(round, other=False):
    return f"{round:032x}.{('f0' if other else '0f') * 32}"


def open_sum(vault, round, other=False):
    """The sum of a round's updates, as server and clients of this vault have it opened."""
    keys, public = (
        client_keys(vault.keys, PADDED_SUMS),
        CkksPublic(public_context(vault.keys / "public.key")[1]),
    )
    order = order_of(round, other)
    sealed = public.combine(
        (public.encrypt(UPDATES[client], pad_for(keys[client], round, order)), 0.25) for client in CLIENTS
    )
    return vault.steward().open_padded_sum(round, order, THIRDS, sealed)


@pytest.mark.slow
def test_a_copy_of_the_stewards_folder_is_a_backup(tmp_path):
    """Restored elsewhere it goes on where it was, and opens nothing a second time."""
    vault = Vault(tmp_path / "old")
    vault.make(CLIENTS, PADDED_SUMS)
    first = open_sum(vault, 1)
    shutil.copytree(vault.folder, tmp_path / "backup")
    shutil.rmtree(vault.folder)
    restored = Vault(shutil.copytree(tmp_path / "backup", tmp_path / "new"))
    assert first == pytest.approx(np.full(4, 0.15), abs=1e-4)
    with pytest.raises(Refused):
        open_sum(restored, 1, other=True)
    assert open_sum(restored, 2) == pytest.approx(np.full(4, 0.15), abs=1e-4)


@pytest.mark.slow
def test_an_old_copy_of_its_progress_ends_its_keys(tmp_path):
    vault = Vault(tmp_path / "vault")
    vault.make(CLIENTS, PADDED_SUMS)
    open_sum(vault, 1)
    shutil.copy(vault.progress_path, tmp_path / "yesterday")
    yesterday = [shutil.copy(path, tmp_path) for path in vault.folder.glob("last-sum-*")]
    open_sum(vault, 2)
    shutil.copy(tmp_path / "yesterday", vault.progress_path)
    for path in yesterday:
        shutil.copy(path, vault.folder)
    with pytest.raises(ConfigError, match="an old copy was put back; its keys cannot be used any more"):
        vault.steward()
