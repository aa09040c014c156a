"""What the hospitals of a masked round agree on: the order, everybody's public keys, the weights.

Every key of the round is derived from a hash of all of it. Hospitals that were given something different cannot read
each other's shares, and their masks do not cancel.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from wardround.flower.secure_aggregation.primitives import public_key
from wardround.privacy.cohorts import MAX_SHARE, MIN_COHORT, cohort_problem
from wardround.privacy.encryption.refusals import Refused

__all__ = ["Cohort", "Limits", "PublicKeys", "group_context", "read_public_key", "threshold_for"]

LONGEST_KEY = 400
"""Characters of a public key in PEM."""


@dataclass(frozen=True)
class Limits:
    """Which sums a party takes part in."""

    min_cohort: int = MIN_COHORT
    max_share: float = MAX_SHARE


@dataclass(frozen=True)
class PublicKeys:
    """One hospital's public keys of one round, in PEM."""

    masks: str
    """For the masks between two hospitals. Its private key is revealed if the hospital drops out."""
    shares: str
    """For encrypting shares. Its private key never leaves the hospital."""
    signature: str = ""
    """By the hospital's registered key, in hex; empty where it has none."""


def threshold_for(clients: int) -> int:
    """How many hospitals of a cohort must be left, and how many shares give a secret: two thirds.

    No server can choose it. With t of n, a server that lies and c hospitals that collude with it get nothing but the
    one sum while c < 2t − n, which is at least n/3.

    >>> [threshold_for(clients) for clients in (2, 3, 4, 5, 6, 10)]
    [2, 2, 3, 4, 4, 7]
    """
    return math.ceil(2 * clients / 3)


@dataclass(frozen=True)
class Cohort:
    """The hospitals of a masked round."""

    order: str
    """The hash of the training order that all of them answered."""
    keys: Mapping[str, PublicKeys]
    weights: Mapping[str, float]
    """Client → the factor of its update in the sum."""

    @classmethod
    def from_plain(cls, plain: Any, order: str) -> Cohort:
        """Read what `to_plain` made and a stranger may have changed."""
        try:
            keys = {name: PublicKeys(*map(str, entry[:3])) for name, entry in plain.items()}
            weights = {name: float(entry[3]) for name, entry in plain.items()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise Refused("the cohort cannot be read") from None
        return cls(order, keys, weights)

    def to_plain(self) -> dict[str, list[Any]]:
        """Client → its keys, signature and weight: strings and numbers for a message."""
        return {
            name: [keys.masks, keys.shares, keys.signature, self.weights[name]]
            for name, keys in self.keys.items()
        }

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """All clients, in the one order that their shares are numbered by."""
        return tuple(sorted(self.keys))

    @cached_property
    def threshold(self) -> int:
        """How many must be left at every stage."""
        return threshold_for(len(self.keys))

    @cached_property
    def context(self) -> bytes:
        """The hash that every key of the round is derived from."""
        keys = {name: [keys.masks, keys.shares] for name, keys in self.keys.items()}
        content = {"order": self.order, "keys": keys, "weights": dict(self.weights)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def check(self, limits: Limits) -> None:
        """Raise `Refused` where a sum of this cohort could show one hospital's update."""
        public = [key for keys in self.keys.values() for key in (keys.masks, keys.shares)]
        if len(set(public)) != len(public):
            raise Refused("two public keys of the cohort are the same")
        self.check_left(self.clients, limits)

    def check_left(self, left: Collection[str], limits: Limits) -> None:
        """Raise `Refused` where those who are left are too few, or one of them would be too much of the sum."""
        if not set(left) <= set(self.clients):
            raise Refused("not all of these hospitals are in the cohort")
        if len(set(left)) < self.threshold:
            raise Refused(
                f"{len(set(left))} of {len(self.keys)} hospitals are left, {self.threshold} are needed"
            )
        problem = cohort_problem(
            {name: self.weights[name] for name in left}, limits.min_cohort, limits.max_share
        )
        if problem is not None:
            raise Refused(problem)


def group_context(cohort: Cohort, group: Collection[str]) -> bytes:
    """The hash that masks are derived from: the cohort, and those of it whose shares have arrived."""
    return hashlib.sha256(cohort.context + json.dumps(sorted(group)).encode()).digest()


def read_public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """A public key that a stranger sent; `Refused` unless it is on our curve."""
    try:
        if len(pem) > LONGEST_KEY:
            raise ValueError("too long")
        key = public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise Refused("a public key cannot be read") from None
    if not isinstance(key.curve, ec.SECP384R1):
        raise Refused("a public key is not on the curve P-384")
    return key
