"""A client's side of encryption: its update leaves it encrypted, under keys it shares with the steward.

What protects a client from the server does not come from the server: the mode is the one its key is for, the public
keys come with it, and a pad is used once (two updates under one pad could be subtracted). That is enough against a
server that follows the protocol and is curious; what a server that lies can still do is in docs/privacy.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wardround.errors import WardroundError
from wardround.privacy.encryption.ciphers import PublicSide, public_side
from wardround.privacy.encryption.pads import pad_for, tag_for
from wardround.privacy.encryption.refusals import Unsealable
from wardround.privacy.encryption.steward import PADDED_SUMS, Deposit
from wardround.privacy.encryption.vault import PUBLIC, client_key, public_context
from wardround.updates import Updates, drop_malformed

__all__ = ["Sealed", "Sealer", "seal_updates"]

Sealed = bytes | Deposit
"""What a client sends in an encrypted mode: a padded ciphertext, or a signed one."""
REMEMBERED = 1000
"""Sessions of which the last round is remembered."""


class Sealer:
    """Encrypts the updates of one client."""

    def __init__(self, client: str, mode: str, key: bytes, public: PublicSide) -> None:
        self.client, self.mode, self.key, self.public = client, mode, key, public
        self.used: dict[str, int] = {}
        """Session → its last round that something was sealed for."""

    @classmethod
    def from_file(cls, path: Path, client: str) -> Sealer:
        """The sealer of the client whose key is in this file; the public keys lie beside it."""
        mode, key = client_key(path)
        return cls(client, mode, key, public_side(*public_context(Path(path).parent / PUBLIC)))

    def seal(self, update: np.ndarray, session: str, round: int) -> Sealed:
        """What leaves the client instead of its update (D float64 values)."""
        if round <= self.used.get(session, 0):
            raise WardroundError(f"round {round} of this session is sealed already; a pad is used once")
        self.used[session] = round
        self.used = dict(list(self.used.items())[-REMEMBERED:])
        if self.mode == PADDED_SUMS:
            return self.public.encrypt(update, pad_for(self.key, session, round))
        ciphertext = self.public.encrypt(update, None)
        return Deposit(ciphertext, tag_for(self.key, session, round, self.client, ciphertext))


def seal_updates(
    updates: Updates, sealers: Mapping[str, Sealer], session: str, round: int
) -> tuple[dict[str, Sealed], dict[str, str]]:
    """What each client of a round sends, and why some send nothing: client → sealed, client → reason."""
    well_formed = drop_malformed(updates)
    sealed: dict[str, Sealed] = {}
    problems = dict(well_formed.dropped)
    for client, row in zip(well_formed.updates.clients, well_formed.updates.matrix, strict=True):
        try:
            sealed[client] = sealers[client].seal(row.double().numpy(), session, round)
        except Unsealable as reason:
            problems[client] = str(reason)
    return sealed, problems
