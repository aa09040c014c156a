"""A client's side of encryption: its update leaves it encrypted, under keys it shares with the steward.

What protects a client from the server does not come from the server: the mode is the one its key is for, the public
keys come with it, and everything it sends is bound to the round and to a hash of the whole order it answers. A key is
for one run: rounds only go forward, and a round is answered for one order only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wardround.errors import WardroundError
from wardround.privacy.encryption.ciphers import PublicSide, public_side
from wardround.privacy.encryption.pads import pad_for, seal_for_steward
from wardround.privacy.encryption.refusals import Unsealable
from wardround.privacy.encryption.steward import PADDED_SUMS
from wardround.privacy.encryption.vault import PUBLIC, client_key, public_context
from wardround.updates import Updates, drop_malformed

__all__ = ["Sealer", "seal_updates"]


class Sealer:
    """Encrypts the updates of one client."""

    def __init__(self, client: str, mode: str, key: bytes, public: PublicSide, min_cohort: int = 2) -> None:
        """`min_cohort`: the fewest clients in a sum that the steward opens, as the key's file says."""
        self.client, self.mode, self.key, self.public = client, mode, key, public
        self.min_cohort = min_cohort
        self.round, self.order = 0, ""
        """The last round that something was sealed for, and the order it answered."""

    @classmethod
    def from_file(cls, path: Path, client: str) -> Sealer:
        """The sealer of the client whose key is in this file; the public keys lie beside it."""
        mode, key, min_cohort = client_key(path)
        public = public_side(*public_context(Path(path).parent / PUBLIC))
        return cls(client, mode, key, public, min_cohort)

    def seal(self, update: np.ndarray, round: int, order: str) -> bytes:
        """What leaves the client instead of its update (D float64 values): a padded ciphertext where the server sums,
        one that only the steward can read where the steward measures."""
        if round < self.round or (round == self.round and order != self.order):
            raise WardroundError(
                f"round {round}: this key has sealed round {self.round} already, and a round is sealed for one order; "
                "a new run needs new keys of the steward"
            )
        self.round, self.order = round, order
        if self.mode == PADDED_SUMS:
            return self.public.encrypt(update, pad_for(self.key, round, order))
        ciphertext = self.public.encrypt(update, None)
        return seal_for_steward(self.key, self.client, round, order, ciphertext)


def seal_updates(
    updates: Updates, sealers: Mapping[str, Sealer], round: int, order: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """What each client of a round sends, and why some send nothing: client → sealed, client → reason."""
    well_formed = drop_malformed(updates)
    sealed: dict[str, bytes] = {}
    problems = dict(well_formed.dropped)
    for client, row in zip(well_formed.updates.clients, well_formed.updates.matrix, strict=True):
        try:
            sealed[client] = sealers[client].seal(row.double().numpy(), round, order)
        except Unsealable as reason:
            problems[client] = str(reason)
    return sealed, problems
