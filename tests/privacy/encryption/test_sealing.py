"""A client's side: what it seals is bound to its mode, its key, the round and the order."""

import numpy as np
import pytest
import torch

from wardround.errors import ConfigError, WardroundError
from wardround.privacy.encryption.pads import open_sealed, pad_for
from wardround.privacy.encryption.sealing import Sealer, seal_updates
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Policy
from wardround.privacy.encryption.vault import Vault, key_path
from wardround.updates import Updates

KEY = b"k" * 32


def test_a_padded_update_comes_off_with_its_pad_alone(secret, public):
    update = np.linspace(-1, 1, 50)
    sealed = Sealer("a", PADDED_SUMS, KEY, public).seal(update, 1, "order")
    one = [(1.0, pad_for(KEY, 1, "order"))]
    assert secret.open_sum(sealed, one) == pytest.approx(update, abs=1e-8)
    for other in (pad_for(KEY, 2, "order"), pad_for(KEY, 1, "another"), pad_for(b"other", 1, "order")):
        assert np.abs(secret.open_sum(sealed, [(1.0, other)])).max() > 1e3
    assert np.abs(secret.open_sum(sealed, [])).max() > 1e3


def test_a_deposit_is_read_by_the_steward_alone(secret, public):
    update = np.linspace(-1, 1, 50)
    sealed = Sealer("a", DEPOSITS, KEY, public).seal(update, 1, "order")
    ciphertext = open_sealed(KEY, "a", 1, "order", sealed)
    assert secret.open_sum(ciphertext, []) == pytest.approx(update, abs=1e-8)
    assert ciphertext[:64] not in sealed


@pytest.mark.parametrize("mode", [PADDED_SUMS, DEPOSITS])
def test_a_round_is_sealed_for_one_order_and_rounds_go_forward(public, mode):
    sealer = Sealer("a", mode, KEY, public)
    sealer.seal(np.ones(3), 2, "order")
    sealer.seal(np.ones(3), 2, "order")
    for round, order in ((2, "another"), (1, "order"), (0, "order")):
        with pytest.raises(WardroundError, match="a new run needs new keys of the steward"):
            sealer.seal(np.ones(3), round, order)
    sealer.seal(np.ones(3), 3, "another")
    assert (sealer.round, sealer.order) == (3, "another")


def test_what_cannot_be_sealed_is_said_for_its_client_alone(public):
    matrix = torch.ones(4, 5)
    matrix[1] = torch.nan
    matrix[2] = 1e30
    clients = tuple("abcd")
    sealers = {client: Sealer(client, PADDED_SUMS, KEY, public) for client in clients}
    sealed, problems = seal_updates(Updates(matrix, clients), sealers, 1, "order")
    assert set(sealed) == {"a", "d"}
    assert problems["b"] == "not finite"
    assert "cannot hold" in problems["c"]


def test_a_key_file_says_mode_and_cohort(tmp_path, secret):
    vault = Vault(tmp_path / "vault")
    vault.make(["a", "b", "c", "d"], DEPOSITS, policy=Policy(min_cohort=4))
    sealer = Sealer.from_file(key_path(vault.keys, "a"), "a")
    assert (sealer.mode, sealer.min_cohort, sealer.client) == (DEPOSITS, 4, "a")
    path = key_path(vault.keys, "b")
    for content in (
        "",
        "encrypted-fedmed",
        "encrypted-fedmed 3",
        "plaintext 3 00ff",
        "encrypted-fedmed x 00ff",
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match="not a"):
            Sealer.from_file(path, "b")
    with pytest.raises(ConfigError, match="cannot be read"):
        Sealer.from_file(vault.keys / "nowhere.key", "b")
