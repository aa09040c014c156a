"""Arithmetic of masked updates: whole numbers modulo 2⁶⁴, and the streams that hide them."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from wardround.privacy.encryption.refusals import Unsealable
from wardround.privacy.masking import masking_problem

__all__ = ["decode", "derive", "encode", "mask_stream"]

FRACTION_BITS = 40
"""An update is rounded to multiples of 2⁻⁴⁰ ≈ 10⁻¹²."""


def encode(values: np.ndarray) -> np.ndarray:
    """Float64 values as whole numbers modulo 2⁶⁴ (uint64).

    >>> decode(encode(np.array([1.5, -2.0])) + encode(np.array([0.25, 0.5])))
    array([ 1.75, -1.5 ])
    """
    problem = masking_problem(values)
    if problem is not None:
        raise Unsealable(problem)
    return np.rint(np.asarray(values, dtype=np.float64) * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)


def decode(total: np.ndarray) -> np.ndarray:
    """The float64 values of whole numbers modulo 2⁶⁴."""
    return np.asarray(total.view(np.int64) * 2.0**-FRACTION_BITS)


def mask_stream(key: bytes, length: int) -> np.ndarray:
    """`length` numbers modulo 2⁶⁴ that nobody without the key can tell from random ones: AES-256 in counter mode.

    A key is derived for one mask of one round and never used again, so the counter begins at 0.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64, copy=False)


def derive(secret: bytes, purpose: str, context: bytes) -> bytes:
    """A key of 32 bytes for one purpose and context (HKDF-Expand with SHA-256)."""
    return HKDFExpand(SHA256(), 32, purpose.encode() + b"\0" + context).derive(secret)
