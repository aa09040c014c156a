"""CKKS through TenSEAL: real vectors of any length, cut into chunks of 8192 slots.

Ring dimension 16384, coefficient modulus 4 × 60 = 240 bits, ternary secret: 192-bit security, for which the
HomomorphicEncryption.org standard allows up to 305 bits at this dimension. Scale 2⁶⁰: the cipher's own error is about
10⁻¹⁵ in a sum, which leaves room for the noise that the steward adds to what it opens (see `steward`). Products are
left at scale 2¹²⁰ instead of being rescaled: a sum is opened right after its one multiplication, and what is not
rescaled keeps a range of ±2⁵⁸ (an attacker's long update would wrap around in less).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from wardround.errors import WardroundError, require
from wardround.privacy.encryption.pads import Pad
from wardround.privacy.encryption.refusals import Refused, Unsealable

__all__ = ["MODULUS_BITS", "RING_DIMENSION", "SLOTS", "CkksPublic", "CkksSecret", "security_bits"]

RING_DIMENSION = 16384
MODULUS_BITS = (60, 60, 60, 60)
SCALE = 2.0**60
SLOTS = RING_DIMENSION // 2
LONGEST = 2.0**28
"""Norm of the longest vector a client may encrypt: its square still fits the range of a product."""
COEFFICIENT_STEP = 2.0**-32
"""Coefficients are multiples of this: exact at this scale, so that weighted pads come off without a trace."""
PAD_BOUND = 2.0**20
"""Pads are uniform in ±2²⁰: about 2³⁰ times a typical entry of an update, with 53-bit arithmetic to spare."""
MAGIC = b"WRC1"
HEADER = struct.Struct("<4sQI")

# Largest modulus (bits) for ternary secrets and classical attackers: homomorphicencryption.org standard, table 1.
STANDARD = {128: {4096: 109, 8192: 218, 16384: 438}, 192: {4096: 75, 8192: 152, 16384: 305}}


def security_bits(dimension: int = RING_DIMENSION, modulus_bits: Sequence[int] = MODULUS_BITS) -> int:
    """The security level that the standard grants these parameters; 0 for none.

    >>> security_bits()
    192
    >>> security_bits(4096)
    0
    """
    total = sum(modulus_bits)
    return max((level for level, limits in STANDARD.items() if total <= limits.get(dimension, 0)), default=0)


class CkksPublic:
    """Encrypts and combines; its context has no secret key, which is checked."""

    name = "ckks"

    def __init__(self, content: bytes) -> None:
        self.tenseal = require("tenseal", "privacy")
        self.context = _context(self.tenseal, content)
        if self.context.has_secret_key():
            raise WardroundError("this CKKS context holds a secret key; the server must not have one")

    def check(self, dimension: int, clients: int) -> None:
        """Any length is fine: time and bytes are linear in it."""

    def exact(self, coefficient: float) -> float:
        return round(coefficient / COEFFICIENT_STEP) * COEFFICIENT_STEP

    def fits(self, vector: np.ndarray) -> None:
        if not np.isfinite(vector).all():
            raise Unsealable("not finite")
        if np.linalg.norm(vector) > LONGEST:
            raise Unsealable(f"norm beyond {LONGEST:g}, which CKKS cannot hold")

    def encrypt(self, vector: np.ndarray, pad: Pad | None) -> bytes:
        vector = np.asarray(vector, dtype=np.float64)
        self.fits(vector)
        chunks = []
        for number, start in enumerate(range(0, len(vector), SLOTS)):
            slots = np.zeros(SLOTS)
            slots[: len(vector) - start] = vector[start : start + SLOTS]
            if pad is not None:
                slots += pad.real(SLOTS, PAD_BOUND, number)
            chunks.append(self.tenseal.ckks_vector(self.context, slots).serialize())
        return pack(len(vector), chunks)

    def combine(self, parts: Iterable[tuple[bytes, float]]) -> bytes:
        length, total = combine(self.tenseal, self.context, parts)
        return pack(length, [chunk.serialize() for chunk in total])


class CkksSecret:
    """The steward's side: opens sums, norms and inner products."""

    name = "ckks"

    def __init__(self, content: bytes) -> None:
        self.tenseal = require("tenseal", "privacy")
        self.context = _context(self.tenseal, content)
        if not self.context.has_secret_key():
            raise WardroundError("this CKKS context holds no secret key: nothing can be opened with it")
        self._rotations_ready = False

    @classmethod
    def generate(cls) -> CkksSecret:
        """Fresh keys."""
        tenseal = require("tenseal", "privacy")
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, RING_DIMENSION, coeff_mod_bit_sizes=list(MODULUS_BITS)
        )
        context.global_scale = SCALE
        return cls(_serialized(context, secret=True))

    def public_bytes(self) -> bytes:
        return _serialized(self.context, secret=False)

    def secret_bytes(self) -> bytes:
        return _serialized(self.context, secret=True)

    def open_sum(self, ciphertext: bytes, parts: Sequence[tuple[float, Pad]]) -> np.ndarray:
        length, chunks = unpack(ciphertext)
        return self._opened(length, (self._load(chunk) for chunk in chunks), parts)

    def open_combination(self, parts: Iterable[tuple[bytes, float]]) -> np.ndarray:
        """Σ coefficient · ciphertext of ciphertexts without pads: summed encrypted, only the sum is opened."""
        length, total = combine(self.tenseal, self.context, parts)
        return self._opened(length, total, ())

    def squared_norm(self, ciphertext: bytes) -> float:
        """‖u‖² computed encrypted; only the number is opened."""
        return self._open_number(self._load(chunk).square() for chunk in unpack(ciphertext)[1])

    def dot(self, ciphertext: bytes, vector: np.ndarray) -> float:
        """⟨u, v⟩ with a vector in the clear, computed encrypted; only the number is opened."""
        length, chunks = unpack(ciphertext)
        slots = np.zeros(len(chunks) * SLOTS)
        slots[:length] = vector
        # A product with nothing but zeros is an error in SEAL, and adds nothing.
        pairs = [(c, v) for c, v in zip(chunks, slots.reshape(-1, SLOTS), strict=True) if v.any()]
        return self._open_number(self._load(c) * v for c, v in pairs) if pairs else 0.0

    def _opened(self, length: int, chunks: Iterable[Any], parts: Sequence[tuple[float, Pad]]) -> np.ndarray:
        values = []
        for number, chunk in enumerate(chunks):
            slots = np.array(chunk.decrypt())
            for coefficient, pad in parts:
                slots -= coefficient * pad.real(SLOTS, PAD_BOUND, number)
            values.append(slots)
        return np.concatenate(values)[:length] if values else np.zeros(0)

    def _open_number(self, products: Iterator[Any]) -> float:
        if not self._rotations_ready:
            self.context.generate_galois_keys()
            self._rotations_ready = True
        total = next(products)
        for product in products:
            total.add_(product)
        return float(total.sum().decrypt()[0])

    def _load(self, chunk: bytes) -> Any:
        return _vector(self.tenseal, self.context, chunk)


def combine(tenseal: Any, context: Any, parts: Iterable[tuple[bytes, float]]) -> tuple[int, list[Any]]:
    """Σ coefficient · ciphertext, chunk by chunk; one ciphertext in memory at a time."""
    length, total = -1, []
    for ciphertext, coefficient in parts:
        if coefficient == 0:
            continue  # SEAL refuses a product that is known to be zero
        own_length, chunks = unpack(ciphertext)
        if length not in (-1, own_length):
            raise Refused(f"ciphertexts of {length} and {own_length} values cannot be summed")
        scaled = [_vector(tenseal, context, chunk) * coefficient for chunk in chunks]
        if length == -1:
            length, total = own_length, scaled
        else:
            for place, chunk in zip(total, scaled, strict=True):
                place.add_(chunk)
    if length == -1:
        raise Refused("a sum needs at least one ciphertext with a coefficient other than 0")
    return length, total


def pack(length: int, chunks: Sequence[bytes]) -> bytes:
    """One byte string out of a vector's chunks."""
    sizes = struct.pack(f"<{len(chunks)}I", *map(len, chunks))
    return b"".join([HEADER.pack(MAGIC, length, len(chunks)), sizes, *chunks])


def unpack(content: bytes) -> tuple[int, list[bytes]]:
    """The length of the vector and its chunks."""
    try:
        magic, length, count = HEADER.unpack_from(content)
        sizes = struct.unpack_from(f"<{count}I", content, HEADER.size)
    except struct.error:
        magic, length, count, sizes = b"", 0, 0, ()
    start = HEADER.size + 4 * count
    if magic != MAGIC or start + sum(sizes) != len(content) or count != -(-length // SLOTS):
        raise Refused("not a CKKS ciphertext of this program")
    chunks = []
    for size in sizes:
        chunks.append(content[start : start + size])
        start += size
    return length, chunks


def _context(tenseal: Any, content: bytes) -> Any:
    try:
        context = tenseal.context_from(content)
    except (ValueError, RuntimeError) as error:
        raise WardroundError(f"not a CKKS context ({error})") from None
    context.auto_rescale = False
    return context


def _vector(tenseal: Any, context: Any, chunk: bytes) -> Any:
    try:
        vector = tenseal.ckks_vector_from(context, chunk)
    except (ValueError, RuntimeError) as error:
        raise Refused(f"not a CKKS ciphertext of this context ({error})") from None
    if vector.size() != SLOTS:
        raise Refused(f"a chunk has {vector.size()} values instead of {SLOTS}")
    return vector


def _serialized(context: Any, secret: bool) -> bytes:
    content: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=secret
    )
    return content
