r"""Paillier: exact sums of fixed-point numbers, many packed into one ciphertext.

A number x becomes the integer ⌊x·2²⁴⌉; 36 of them, 56 bits apart, make one plaintext modulo n (2048 bits, which
NIST SP 800-57 rates at 112-bit security). A coefficient is a multiple of 2⁻²⁰, so a weighted sum of packed
plaintexts is the packed weighted sum as long as no entry leaves its 56 bits. Pads are uniform modulo n: they hide
a plaintext perfectly.

Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", EUROCRYPT 1999.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Sequence

import numpy as np

from wardround.errors import ConfigError, WardroundError
from wardround.privacy.encryption.pads import Pad
from wardround.privacy.encryption.paillier_keys import PrivateKey, PublicKey, generate_private_key, power
from wardround.privacy.encryption.refusals import Refused, Unsealable

__all__ = ["KEY_BITS", "LARGEST", "PER_CIPHERTEXT", "PaillierPublic", "PaillierSecret"]

KEY_BITS = 2048
SLOT_BITS = 56
PER_CIPHERTEXT = (KEY_BITS - 2) // SLOT_BITS
FRACTION = 2.0**24
WEIGHT = 2.0**20
LARGEST = 2.0**8
"""Entries beyond this do not fit: 2⁸·2²⁴·2²⁰ = 2⁵², and a sum of coefficients up to 4 leaves 2⁵⁴ of the 2⁵⁵."""
MOST_WEIGHT = 4.0
PATIENCE = 120.0
"""Seconds of encryption a round (all clients one after the other) above which a model counts as too large."""
CIPHERTEXT_BYTES = 2 * KEY_BITS // 8
MAGIC = b"WRP1"
HEADER = struct.Struct("<4sQ")


class PaillierPublic:
    """Encrypts and combines with n alone."""

    name = "paillier"

    def __init__(self, content: bytes) -> None:
        stored = _read(content)
        if "p" in stored:
            raise WardroundError("these Paillier keys hold the secret primes; the server must not have them")
        self.key = PublicKey(stored["n"])

    def check(self, dimension: int, clients: int) -> None:
        seconds = _chunks(dimension) * clients * self._seconds_an_encryption()
        if seconds > PATIENCE:
            raise ConfigError(
                f"cipher paillier: encrypting {dimension} parameters for {clients} clients would take about "
                f"{_words(seconds)} a round here (limit {_words(PATIENCE)}); use cipher ckks or a smaller model"
            )

    def _seconds_an_encryption(self) -> float:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            self.key.encrypt(1)
            taken.append(time.perf_counter() - start)
        return min(taken)

    def exact(self, coefficient: float) -> float:
        return round(coefficient * WEIGHT) / WEIGHT

    def fits(self, vector: np.ndarray) -> None:
        if not np.isfinite(vector).all():
            raise Unsealable("not finite")
        if len(vector) and np.abs(vector).max() > LARGEST:
            raise Unsealable(f"an entry beyond ±{LARGEST:g}, which packed Paillier cannot hold")

    def encrypt(self, vector: np.ndarray, pad: Pad | None) -> bytes:
        vector = np.asarray(vector, dtype=np.float64)
        self.fits(vector)
        whole = np.rint(vector * FRACTION).astype(np.int64).tolist()
        chunks = []
        for number, start in enumerate(range(0, len(whole), PER_CIPHERTEXT)):
            packed = sum(x << (SLOT_BITS * i) for i, x in enumerate(whole[start : start + PER_CIPHERTEXT]))
            if pad is not None:
                packed += pad.integer(self.key.n, number)
            chunks.append(self.key.encrypt(packed % self.key.n))
        return _pack(len(vector), chunks)

    def combine(self, parts: Iterable[tuple[bytes, float]]) -> bytes:
        n_squared = self.key.n_squared
        length, total, spent = -1, [], 0.0
        for content, coefficient in parts:
            own_length, chunks = _unpack(content)
            if length not in (-1, own_length):
                raise Refused(f"ciphertexts of {length} and {own_length} values cannot be summed")
            times, spent = round(coefficient * WEIGHT), spent + abs(coefficient)
            scaled = [power(chunk, times, n_squared) for chunk in chunks]
            if length == -1:
                length, total = own_length, scaled
            else:
                total = [a * b % n_squared for a, b in zip(total, scaled, strict=True)]
        if length == -1:
            raise Refused("a sum needs at least one ciphertext")
        if spent > MOST_WEIGHT:
            raise Refused(f"coefficients sum to {spent:g}; packed Paillier holds sums up to {MOST_WEIGHT:g}")
        return _pack(length, total)


class PaillierSecret:
    """The steward's side."""

    name = "paillier"

    def __init__(self, content: bytes) -> None:
        stored = _read(content)
        if "p" not in stored:
            raise WardroundError("these Paillier keys hold no secret: nothing can be opened with them")
        try:
            self.key = PrivateKey(stored["p"], stored["q"])
        except (KeyError, ValueError) as error:
            raise WardroundError(f"not Paillier keys of this program ({error})") from None

    @classmethod
    def generate(cls) -> PaillierSecret:
        """Fresh keys."""
        key = generate_private_key(KEY_BITS)
        return cls(_written({"n": key.public.n, "p": key.p, "q": key.q}))

    def public_bytes(self) -> bytes:
        return _written({"n": self.key.public.n})

    def secret_bytes(self) -> bytes:
        return _written({"n": self.key.public.n, "p": self.key.p, "q": self.key.q})

    def open_sum(self, ciphertext: bytes, parts: Sequence[tuple[float, Pad]]) -> np.ndarray:
        length, chunks = _unpack(ciphertext)
        n = self.key.public.n
        values: list[float] = []
        for number, chunk in enumerate(chunks):
            packed = self.key.decrypt(chunk)
            for coefficient, pad in parts:
                packed -= round(coefficient * WEIGHT) * pad.integer(n, number)
            values += _digits(packed % n, n)
        # What was weighted carries the weights' factor 2²⁰.
        return np.array(values[:length], dtype=np.float64) / (FRACTION * WEIGHT)


def _digits(packed: int, n: int) -> list[float]:
    """The signed numbers that were packed, lowest first."""
    packed = packed - n if packed > n // 2 else packed
    half, base = 1 << (SLOT_BITS - 1), 1 << SLOT_BITS
    digits = []
    for _ in range(PER_CIPHERTEXT):
        digit = (packed + half) % base - half
        digits.append(float(digit))
        packed = (packed - digit) >> SLOT_BITS
    return digits


def _chunks(dimension: int) -> int:
    return -(-dimension // PER_CIPHERTEXT)


def _pack(length: int, chunks: Sequence[int]) -> bytes:
    return b"".join([HEADER.pack(MAGIC, length), *(int(c).to_bytes(CIPHERTEXT_BYTES, "big") for c in chunks)])


def _unpack(content: bytes) -> tuple[int, list[int]]:
    magic, length = HEADER.unpack_from(content) if len(content) >= HEADER.size else (b"", 0)
    if magic != MAGIC or len(content) != HEADER.size + _chunks(length) * CIPHERTEXT_BYTES:
        raise Refused("not a Paillier ciphertext of this program")
    starts = range(HEADER.size, len(content), CIPHERTEXT_BYTES)
    return length, [int.from_bytes(content[start : start + CIPHERTEXT_BYTES], "big") for start in starts]


def _read(content: bytes) -> dict[str, int]:
    try:
        return {name: int(value, 16) for name, value in json.loads(content).items()}
    except (ValueError, AttributeError, TypeError):
        raise WardroundError("not Paillier keys of this program") from None


def _written(values: dict[str, int]) -> bytes:
    return json.dumps({name: f"{int(value):x}" for name, value in values.items()}).encode()


def _words(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 180 else f"{seconds / 60:.0f} minutes"
