"""One-time pads that a client and the steward can both derive, and nobody else; and messages only they can read.

A client adds its pad to its update before encrypting. The steward takes off, after opening, the weighted sum
of the pads of exactly those clients and weights that the server named. Had the server handed in anything else
(one client's ciphertext passed off as a sum, other weights, a client twice), what is left is buried under pads
it does not know. So the steward need not see single ciphertexts to know that a refusal protects something.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import Any

import numpy as np

from wardround.errors import require

__all__ = ["Pad", "open_sealed", "pad_for", "seal_for_steward"]

NONCE_BYTES = 12


class Pad:
    """A stream of random bytes named by a key and a purpose: the same for whoever knows the key.

    SHAKE-256 of a keyed hash: without the key it cannot be told from random bytes.

    >>> Pad(b"key").real(2, 8.0).tolist() == Pad(b"key").real(2, 8.0).tolist()
    True
    """

    def __init__(self, seed: bytes) -> None:
        self.seed = seed

    def stream(self, part: int, length: int) -> bytes:
        """The bytes of one numbered part."""
        return hashlib.shake_256(self.seed + part.to_bytes(8, "big")).digest(length)

    def real(self, count: int, bound: float, part: int = 0) -> np.ndarray:
        """Uniform in [−bound, bound), 53 bits each: a coarser pad would show what lies between its steps."""
        drawn = np.frombuffer(self.stream(part, 8 * count), dtype="<i8") >> 11
        return drawn.astype(np.float64) * (bound / 2**52)

    def integer(self, below: int, part: int) -> int:
        """A number in [0, below), uniform to within 2⁻¹²⁸."""
        length = (below.bit_length() + 7) // 8 + 16
        return int.from_bytes(self.stream(part, length), "big") % below


def pad_for(client_key: bytes, round: int, order: str) -> Pad:
    """The pad of one client's one update, bound to the round and to the order it answers (a hash of the whole order).

    Clients that were given different orders have pads that do not come off together.
    """
    return Pad(hmac.digest(client_key, f"pad\n{round}\n{order}".encode(), "sha256"))


def seal_for_steward(client_key: bytes, client: str, round: int, order: str, content: bytes) -> bytes:
    """Encrypt and sign what only the steward may read: ChaCha20-Poly1305, bound to client, round and order."""
    cipher, nonce = _aead(client_key), os.urandom(NONCE_BYTES)
    return nonce + bytes(cipher.encrypt(nonce, content, _context(client, round, order)))


def open_sealed(client_key: bytes, client: str, round: int, order: str, sealed: bytes) -> bytes | None:
    """What a client sealed; None where it did not seal this, for this round and order."""
    from cryptography.exceptions import InvalidTag

    nonce, content = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return bytes(_aead(client_key).decrypt(nonce, content, _context(client, round, order)))
    except (InvalidTag, ValueError):  # a ValueError: too short to hold a nonce
        return None


def _aead(client_key: bytes) -> Any:
    require("cryptography", "privacy")
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(hmac.digest(client_key, b"deposit", "sha256"))


def _context(client: str, round: int, order: str) -> bytes:
    return json.dumps([client, round, order]).encode()
