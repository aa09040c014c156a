"""The server's side of a masked round, as a state machine without messages.

It forwards keys and shares, adds up masked updates, and takes off the masks that did not cancel. It never holds what a
single update could be read from, unless hospitals reveal more than `MaskingClient` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from wardround.errors import WardroundError
from wardround.flower.secure_aggregation.client import (
    SHARE_BYTES,
    KeyShares,
    Revealed,
    key_from_secret,
    pair_mask,
)
from wardround.flower.secure_aggregation.cohort import Cohort, Limits, group_context
from wardround.flower.secure_aggregation.masks import decode, derive, mask_stream
from wardround.flower.secure_aggregation.primitives import combine_shares
from wardround.flower.wire import key_bytes
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.masking import LARGEST_ENTRY

__all__ = ["MaskingServer", "SumLost"]

NUMBER_BYTES = 4
"""A share begins with its number."""


class SumLost(WardroundError):
    """The masked updates of a round cannot be summed: too few hospitals are left, or one sent something wrong."""


class MaskingServer:
    """The server in one round.

    The stages in order: `take_shares` for each reply, `deliveries`; `take_masked`, `survivors`; `take_tags`,
    `confirmations`; `take_revealed`, `unmask`. A `take_…` raises `Refused` for a reply that is of no use; a stage that
    too few hospitals have answered raises `SumLost`.
    """

    def __init__(self, cohort: Cohort, dimension: int, limits: Limits) -> None:
        """`dimension`: D, the length of an update. Raises `Refused` for a cohort that no hospital would accept."""
        cohort.check(limits)
        self.cohort, self.dimension, self.limits = cohort, dimension, limits
        self._shares: dict[str, KeyShares] = {}
        self._group: tuple[str, ...] = ()
        self._total = np.zeros(dimension, dtype=np.uint64)
        self._masked: set[str] = set()
        self._tags: dict[str, Mapping[str, str]] = {}
        self._revealed: dict[str, Revealed] = {}

    def take_shares(self, client: str, shares: KeyShares) -> None:
        """Keep one hospital's encrypted shares."""
        if set(shares.tokens) != set(self.cohort.clients) - {client}:
            raise Refused("its shares are not for all the others")
        self._shares[client] = shares

    def deliveries(self) -> dict[str, dict[str, str]]:
        """Hospital → the shares that the others have encrypted for it."""
        self._check_left(self._shares, "have shared their keys")
        self._group = tuple(sorted(self._shares))
        return {
            client: {peer: self._shares[peer].tokens[client] for peer in self._group if peer != client}
            for client in self._group
        }

    def take_masked(self, client: str, vector: np.ndarray) -> None:
        """Add one hospital's masked update to the sum."""
        if vector.dtype != np.uint64 or vector.shape != (self.dimension,):
            raise Refused(f"a masked update of shape {vector.shape} instead of {(self.dimension,)}")
        if client in self._masked or client not in self._group:
            raise Refused("its masked update was not asked for")
        self._total += vector
        self._masked.add(client)

    def survivors(self) -> tuple[str, ...]:
        """The hospitals whose masked updates have arrived."""
        self._check_left(self._masked, "have sent a masked update")
        return tuple(sorted(self._masked))

    def take_tags(self, client: str, tags: Mapping[str, str]) -> None:
        """Keep what one hospital confirms to the others."""
        if set(tags) != self._masked - {client}:
            raise Refused("its confirmation is not for all the others that are left")
        self._tags[client] = tags

    def confirmations(self) -> dict[str, dict[str, str]]:
        """Hospital that has confirmed → what the others have confirmed to it."""
        self._check_count(self._tags, "have confirmed who is left")
        return {
            client: {peer: tags[client] for peer, tags in self._tags.items() if peer != client}
            for client in self._tags
        }

    def take_revealed(self, client: str, revealed: Revealed) -> None:
        """Keep the shares that one hospital reveals."""
        if set(revealed.seeds) != self._masked or set(revealed.keys) != set(self._group) - self._masked:
            raise Refused("it did not reveal one share for each of the others")
        number = self.cohort.clients.index(client) + 1
        for shares, size in zip((revealed.seeds, revealed.keys), SHARE_BYTES, strict=True):
            if any(_number_of(share, size) != number for share in shares.values()):
                raise Refused("it revealed something that is no share of its own")
        self._revealed[client] = revealed

    def unmask(self) -> np.ndarray:
        """The sum of weight · update over the survivors: D float64 values."""
        self._check_count(self._revealed, "have revealed their shares")
        context, total = group_context(self.cohort, self._group), self._total.copy()
        for client in sorted(self._masked):
            seed = _combine([revealed.seeds[client] for revealed in self._chosen()])
            if hashlib.sha256(seed).hexdigest() != self._shares[client].commitment:
                raise SumLost(f"the shares of {client}'s seed do not fit together")
            total -= mask_stream(derive(seed, "own mask", context), self.dimension)
        for dropped in sorted(set(self._group) - self._masked):
            key = self._recovered_key(dropped)
            for client in self._masked:
                public = self.cohort.keys[client].masks
                total += pair_mask(key, dropped, client, public, context, self.dimension)
        values = decode(total)
        if self.dimension and float(np.abs(values).max()) > LARGEST_ENTRY:
            raise SumLost(
                "the sum is larger than any honest one: a mask did not cancel, or a hospital sent noise"
            )
        return values

    def _chosen(self) -> list[Revealed]:
        """As many hospitals as are needed to put a secret together."""
        return [self._revealed[client] for client in sorted(self._revealed)[: self.cohort.threshold]]

    def _recovered_key(self, client: str) -> ec.EllipticCurvePrivateKey:
        """The mask key of a hospital that dropped out after the others had masked their updates."""
        try:
            key = key_from_secret(_combine([revealed.keys[client] for revealed in self._chosen()]))
        except Refused:
            raise SumLost(f"the shares of {client}'s key do not fit together") from None
        if key_bytes(key.public_key()).decode() != self.cohort.keys[client].masks:
            raise SumLost(f"the shares of {client}'s key do not fit together")
        return key

    def _check_left(self, left: Mapping[str, object] | set[str], what: str) -> None:
        self._check_count(left, what)
        try:
            self.cohort.check_left(tuple(left), self.limits)
        except Refused as problem:
            raise SumLost(f"of those who {what}: {problem}") from None

    def _check_count(self, left: Mapping[str, object] | set[str], what: str) -> None:
        needed, count = self.cohort.threshold, len(self.cohort.clients)
        if len(left) < needed:
            raise SumLost(f"{len(left)} of {count} hospitals {what}, {needed} are needed")


def _number_of(share: str, size: int) -> int | None:
    """The number of a share, which says whose it is; None for what is no share of that size."""
    try:
        content = bytes.fromhex(share)
    except (TypeError, ValueError):
        return None
    return int.from_bytes(content[:NUMBER_BYTES], "little") if len(content) == size else None


def _combine(shares: list[str]) -> bytes:
    """The secret of these shares; something else where they do not belong together."""
    try:
        return combine_shares([bytes.fromhex(share) for share in shares])
    except (ValueError, IndexError):
        return b""
