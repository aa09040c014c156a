"""Encrypts a hospital's update before it leaves, under keys from the steward, never from the server.

The mode is the one the hospital's key is for, the public keys lie beside it, and a pad is used once per session and
round (two updates under one pad could be subtracted). This protects an update from a server that follows the
protocol but looks at all it receives. It does not protect it from a server that sends dishonest orders: the session,
the round, the work and the learning rate all come from the server (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wardround.errors import WardroundError
from wardround.privacy.encryption.ciphers import public_side
from wardround.privacy.encryption.pads import pad_for, tag_for
from wardround.privacy.encryption.steward import PADDED_SUMS
from wardround.privacy.encryption.vault import PUBLIC, client_key, public_context

__all__ = ["Lock"]

PLAIN = "plaintext"
REMEMBERED = 1000
"""Sessions of which the last round is remembered."""


class Lock:
    """Seals the updates of one hospital with the key in a file."""

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        self.mode, self.key = client_key(path)
        self.public = public_side(*public_context(Path(path).parent / PUBLIC))
        self.used: dict[str, int] = {}
        """Session → its last round that something was sealed for."""

    def seal(self, update: np.ndarray, head: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays that leave instead of the update."""
        check_mode(head, self.mode)
        session, round = str(head["session"]), int(head["round"])
        if round <= self.used.get(session, 0):
            raise WardroundError(f"round {round} of this session is sealed already; a pad is used once")
        self.used[session] = round
        self.used = dict(list(self.used.items())[-REMEMBERED:])
        vector = update.astype(np.float64)
        if self.mode == PADDED_SUMS:
            return {"ciphertext": _array(self.public.encrypt(vector, pad_for(self.key, session, round)))}
        ciphertext = self.public.encrypt(vector, None)
        tag = tag_for(self.key, session, round, self.client, ciphertext)
        return {"ciphertext": _array(ciphertext), "tag": _array(tag)}


def check_mode(head: Mapping[str, Any], mode: str) -> None:
    """Refuse an order that is for another mode than the hospital's own."""
    asked = head.get("mode", PLAIN)
    if asked != mode:
        own = "it has no steward_key" if mode == PLAIN else f"its steward_key is for {mode}"
        raise WardroundError(f"the order is for updates in mode {asked}, but {own}")


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)
