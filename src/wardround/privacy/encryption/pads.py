"""One-time pads that a client and the steward can both derive, and nobody else.

A client adds its pad to its update before encrypting. The steward takes off, after opening, the weighted sum
of the pads of exactly those clients and weights that the server named. Had the server handed in anything else
(one client's ciphertext passed off as a sum, other weights, a client twice), what is left is buried under pads
it does not know. So the steward need not see single ciphertexts to know that a refusal protects something.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

__all__ = ["Pad", "pad_for", "tag_for"]


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


def pad_for(client_key: bytes, session: str, round: int) -> Pad:
    """The pad of one client's one update; a pad is never used twice because a session never has a round twice."""
    return Pad(hmac.digest(client_key, f"pad\n{session}\n{round}".encode(), "sha256"))


def tag_for(client_key: bytes, session: str, round: int, client: str, ciphertext: bytes) -> bytes:
    """A client's signature for the steward: this ciphertext is mine, for this round of this session."""
    content = hashlib.sha256(ciphertext).hexdigest()
    return hmac.digest(client_key, f"deposit\n{session}\n{round}\n{client}\n{content}".encode(), "sha256")
