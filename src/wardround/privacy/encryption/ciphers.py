"""What a cipher must do: encrypt a padded vector, weigh and sum ciphertexts, open a sum.

Two roles, two objects. `PublicSide` encrypts and combines and holds no secret; `SecretSide` opens. A pad is
part of a cipher's work because its arithmetic decides what a pad can be (real numbers in CKKS, integers modulo
n in Paillier).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from wardround.errors import ParameterError, did_you_mean
from wardround.privacy.encryption.pads import Pad

__all__ = ["CIPHERS", "PublicSide", "SecretSide", "new_secret", "public_side", "secret_side"]

CIPHERS = ("ckks", "paillier")


class PublicSide(Protocol):
    """Holds public keys only: what clients and the aggregating server have."""

    name: str

    def check(self, dimension: int, clients: int) -> None:
        """Raise where vectors of that length would take unreasonably long, with the estimate."""
        ...

    def fits(self, vector: np.ndarray) -> None:
        """Raise `Unsealable` for a vector that the cipher cannot hold."""
        ...

    def encrypt(self, vector: np.ndarray, pad: Pad | None) -> bytes:
        """A serialised ciphertext of vector + pad."""
        ...

    def combine(self, parts: Iterable[tuple[bytes, float]]) -> bytes:
        """Σ coefficient · ciphertext, still encrypted; coefficients as `exact` makes them."""
        ...

    def exact(self, coefficient: float) -> float:
        """The nearest coefficient the cipher can multiply with without rounding."""
        ...


class SecretSide(Protocol):
    """Holds the secret key: only the steward has one."""

    name: str

    def public_bytes(self) -> bytes:
        """The public side, serialised."""
        ...

    def secret_bytes(self) -> bytes:
        """Everything, serialised, for the steward's own disk."""
        ...

    def open_sum(self, ciphertext: bytes, parts: Sequence[tuple[float, Pad]]) -> np.ndarray:
        """Decrypt a sum and take off Σ coefficient · pad."""
        ...


def public_side(name: str, content: bytes) -> PublicSide:
    """The public side out of bytes; bytes with a secret key in them are refused."""
    if name == "ckks":
        from wardround.privacy.encryption.ckks import CkksPublic

        return CkksPublic(content)
    if name == "paillier":
        from wardround.privacy.encryption.paillier import PaillierPublic

        return PaillierPublic(content)
    raise ParameterError(f"unknown cipher {name!r}; {did_you_mean(name, CIPHERS)}")


def secret_side(name: str, content: bytes) -> SecretSide:
    """The secret side out of its bytes."""
    if name == "ckks":
        from wardround.privacy.encryption.ckks import CkksSecret

        return CkksSecret(content)
    if name == "paillier":
        from wardround.privacy.encryption.paillier import PaillierSecret

        return PaillierSecret(content)
    raise ParameterError(f"unknown cipher {name!r}; {did_you_mean(name, CIPHERS)}")


def new_secret(name: str) -> SecretSide:
    """Fresh keys."""
    if name == "ckks":
        from wardround.privacy.encryption.ckks import CkksSecret

        return CkksSecret.generate()
    if name == "paillier":
        from wardround.privacy.encryption.paillier import PaillierSecret

        return PaillierSecret.generate()
    raise ParameterError(f"unknown cipher {name!r}; {did_you_mean(name, CIPHERS)}")
