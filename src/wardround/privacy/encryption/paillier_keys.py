r"""Paillier's cryptosystem over whole numbers, with gmpy2's arithmetic.

With n = pq and generator g = n + 1 a message m < n is encrypted with a random r as

.. math:: c = (1 + nm)\, r^n \bmod n^2

and decrypted modulo p and q apart (Chinese remainders): :math:`m \equiv L_p(c^{p-1} \bmod p^2)\, h_p \pmod p` with
:math:`L_p(x) = (x-1)/p` and :math:`h_p = L_p(g^{p-1} \bmod p^2)^{-1}`.

Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", EUROCRYPT 1999, sections 4 and 7.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

from wardround.errors import require

__all__ = ["PrivateKey", "PublicKey", "generate_private_key", "power"]

TESTS = 40
"""Rounds of the Miller-Rabin test: a composite number passes with probability below 4⁻⁴⁰."""


def _gmpy2() -> Any:
    return require("gmpy2", "privacy")


def power(base: int, exponent: int, modulus: int) -> int:
    """base^exponent modulo `modulus`; a negative exponent is that power of the inverse."""
    return int(_gmpy2().powmod(base, exponent, modulus))


class PublicKey:
    """Encrypts with n alone.

    >>> key = generate_private_key(512)
    >>> product = key.public.encrypt(20) * key.public.encrypt(22) % key.public.n_squared
    >>> key.decrypt(product)
    42
    """

    def __init__(self, n: int) -> None:
        self.n, self.n_squared = n, n * n

    def encrypt(self, message: int, blinding: int | None = None) -> int:
        """The ciphertext of a message in [0, n); `blinding` is r, drawn from the system where it is not given."""
        r = self._blinding() if blinding is None else blinding
        return (1 + self.n * message) * power(r, self.n, self.n_squared) % self.n_squared

    def _blinding(self) -> int:
        while True:
            r = secrets.randbelow(self.n - 1) + 1
            if math.gcd(r, self.n) == 1:
                return r


class PrivateKey:
    """Decrypts with the primes p and q."""

    def __init__(self, p: int, q: int) -> None:
        if p == q or math.gcd(p * q, (p - 1) * (q - 1)) != 1:
            raise ValueError("p and q must be different primes of like size")
        self.p, self.q, self.public = p, q, PublicKey(p * q)
        generator = self.public.n + 1
        self._h_p = pow(self._log(generator, p), -1, p)
        self._h_q = pow(self._log(generator, q), -1, q)
        self._q_inverse = pow(q, -1, p)

    def decrypt(self, ciphertext: int) -> int:
        """The message in [0, n)."""
        at_p = self._log(ciphertext, self.p) * self._h_p % self.p
        at_q = self._log(ciphertext, self.q) * self._h_q % self.q
        return at_q + (at_p - at_q) * self._q_inverse % self.p * self.q

    @staticmethod
    def _log(value: int, prime: int) -> int:
        return (power(value, prime - 1, prime * prime) - 1) // prime


def generate_private_key(bits: int) -> PrivateKey:
    """Fresh primes for an n of exactly that many bits."""
    while True:
        p, q = _prime(bits // 2), _prime(bits // 2)
        if p != q and (p * q).bit_length() == bits:
            return PrivateKey(p, q)


def _prime(bits: int) -> int:
    gmpy2 = _gmpy2()
    while True:
        drawn = (
            secrets.randbits(bits) | (3 << (bits - 2)) | 1
        )  # odd, and long enough for a product of twice the bits
        if gmpy2.is_prime(drawn, TESTS):
            return drawn
