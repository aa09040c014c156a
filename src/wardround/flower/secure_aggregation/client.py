"""One hospital's side of a masked round, as a state machine without messages.

It answers each stage once, in order, and decides by what it holds itself: the order it answered, the keys it made, its
own limits. Whatever the server says, it reveals for one peer a share of the seed or of the key, never both.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec

from wardround.flower.secure_aggregation.cohort import (
    Cohort,
    Limits,
    PublicKeys,
    group_context,
    read_public_key,
)
from wardround.flower.secure_aggregation.identity import Identity
from wardround.flower.secure_aggregation.masks import derive, encode, mask_stream
from wardround.flower.secure_aggregation.primitives import (
    create_shares,
    decrypt,
    encrypt,
    join_shares,
    new_key,
    shared_key,
    split_shares,
)
from wardround.flower.wire import key_bytes
from wardround.privacy.encryption.refusals import Refused

__all__ = [
    "SHARE_BYTES",
    "STAGES",
    "KeyShares",
    "MaskingClient",
    "Revealed",
    "key_from_secret",
    "pair_key",
    "pair_mask",
]

STAGES = ("train", "share-keys", "mask", "confirm", "reveal")
"""What a hospital answers in a round, in this order."""
CURVE = ec.SECP384R1()
SECRET_BYTES = 48
"""Of a private key on the curve."""
SEED_BYTES = 31
"""248 bits: padded to whole blocks, which sharing needs, they are two."""
SHARE_BYTES = (36, 68)
"""Of a share of a seed and of a key: a number of 4 bytes, and the secret padded to blocks of 16."""


@dataclass(frozen=True)
class KeyShares:
    """What a hospital sends the others through the server."""

    tokens: Mapping[str, str]
    """Peer → shares of this hospital's seed and key, encrypted for that peer."""
    commitment: str
    """The seed's hash: whoever puts the seed together can tell that it is the right one."""


@dataclass(frozen=True)
class Revealed:
    """What a hospital reveals at the end, in hex: one share per peer, never two."""

    seeds: Mapping[str, str]
    """Peer whose update arrived → share of its seed."""
    keys: Mapping[str, str]
    """Peer that dropped out → share of its mask key."""


class MaskingClient:
    """One hospital in one round. Every method answers one stage; `Refused` is raised instead of an unsafe answer."""

    def __init__(self, name: str, order: str, limits: Limits, identity: Identity | None = None) -> None:
        """Make fresh keys for one round.

        Args:
            name: of the hospital.
            order: the hash of the training order that it answers.
            limits: which sums it takes part in.
            identity: its registered key and those of the others; None where it does not know the others.
        """
        self.name, self.order, self.limits, self.identity = name, order, limits, identity
        self.stage = STAGES[0]
        """The stage that was answered last."""
        self._mask_key, self._share_key = new_key(), new_key()
        self._seed = b""
        self._cohort: Cohort | None = None
        self._shares: dict[str, tuple[bytes, bytes]] = {}
        """Peer (and this hospital itself) → the shares of its seed and key that this hospital holds."""
        self._survivors: tuple[str, ...] = ()
        self._channels: dict[str, bytes] = {}
        """Peer → the key between it and this hospital: worked out once."""

    @property
    def sent_update(self) -> bool:
        """Has the masked update left the hospital? Then the round is over for it, whatever becomes of the sum."""
        return STAGES.index(self.stage) >= STAGES.index("mask")

    def public_keys(self) -> PublicKeys:
        """Stage `train`: the public keys of this round."""
        keys = PublicKeys(*self._pems())
        return keys if self.identity is None else self.identity.sign(self.name, self.order, keys)

    def share_keys(self, cohort: Cohort) -> KeyShares:
        """Stage `share-keys`: shares of the seed and of the mask key, for each of the others."""
        self._check_turn("share-keys")
        own = cohort.keys.get(self.name)
        if cohort.order != self.order:
            raise Refused("the cohort is for another order")
        if own is None or (own.masks, own.shares) != self._pems():
            raise Refused("the cohort does not have this hospital's own keys")
        cohort.check(self.limits)
        if self.identity is not None:
            self.identity.check(cohort)
        seed, count, threshold = os.urandom(SEED_BYTES), len(cohort.clients), cohort.threshold
        parts = zip(
            create_shares(seed, threshold, count),
            create_shares(_secret(self._mask_key), threshold, count),
            strict=True,
        )
        shares = dict(zip(cohort.clients, parts, strict=True))
        here, tokens = cohort.clients.index(self.name), {}
        for there, peer in enumerate(cohort.clients):
            if peer != self.name:
                content = join_shares(here, there, *shares[peer])
                tokens[peer] = encrypt(self._token_key(cohort, peer), content).decode()
        self._cohort, self._seed, self._shares = cohort, seed, {self.name: shares[self.name]}
        self.stage = "share-keys"
        return KeyShares(tokens, hashlib.sha256(seed).hexdigest())

    def mask(self, tokens: Mapping[str, str], update: np.ndarray) -> np.ndarray:
        """Stage `mask`: the weighted update under all masks.

        Args:
            tokens: peer → the shares that it encrypted for this hospital.
            update: D float64 values.

        Returns:
            D numbers modulo 2⁶⁴ (uint64).
        """
        self._check_turn("mask")
        cohort, group = self._agreed(), sorted({*tokens, self.name})
        if self.name in tokens:
            raise Refused("shares of this hospital for itself")
        cohort.check_left(group, self.limits)
        shares = {peer: self._read_token(cohort, peer, token) for peer, token in tokens.items()}
        context = group_context(cohort, group)
        total = encode(cohort.weights[self.name] * update)
        total += mask_stream(derive(self._seed, "own mask", context), len(total))
        for peer in tokens:
            total += pair_mask(self._mask_key, self.name, peer, cohort.keys[peer].masks, context, len(total))
        self._shares |= shares
        self.stage = "mask"
        return total

    def confirm(self, survivors: Collection[str]) -> dict[str, str]:
        """Stage `confirm`: what this hospital was told of who is left, for each of the others to check."""
        self._check_turn("confirm")
        left = tuple(sorted(set(survivors)))
        if self.name not in left:
            raise Refused("this hospital has sent its update, but is said to have dropped out")
        if not set(left) <= set(self._shares):
            raise Refused("hospitals are said to be left that were not there when updates were masked")
        self._agreed().check_left(left, self.limits)
        self._survivors = left
        self.stage = "confirm"
        return {peer: self._tag(self.name, peer) for peer in left if peer != self.name}

    def reveal(self, tags: Mapping[str, str]) -> Revealed:
        """Stage `reveal`: one share per peer, where enough of the others were told the same of who is left.

        Args:
            tags: peer → what it made for this hospital at the stage `confirm`.
        """
        self._check_turn("reveal")
        cohort = self._agreed()
        for peer, tag in tags.items():
            if peer == self.name or peer not in self._survivors:
                raise Refused(f"a confirmation by '{peer}', which is not one of the others that are left")
            if not hmac.compare_digest(str(tag).encode(), self._tag(peer, self.name).encode()):
                raise Refused(f"'{peer}' was told something else of who is left")
        if len(tags) + 1 < cohort.threshold:
            raise Refused(
                f"{len(tags) + 1} hospitals have confirmed who is left, {cohort.threshold} are needed"
            )
        shares, self._shares, self._seed = self._shares, {}, b""
        # Nothing that could open this round stays: a disk that is stolen later must not tell.
        self._mask_key, self._share_key, self._channels = new_key(), new_key(), {}
        self.stage = "reveal"
        left = set(self._survivors)
        return Revealed(
            {peer: seed.hex() for peer, (seed, _) in shares.items() if peer in left},
            {peer: key.hex() for peer, (_, key) in shares.items() if peer not in left},
        )

    def _check_turn(self, stage: str) -> None:
        if STAGES.index(stage) != STAGES.index(self.stage) + 1:
            raise Refused(
                f"stage '{stage}' is not the next one after '{self.stage}': each is answered once a round"
            )

    def _agreed(self) -> Cohort:
        assert self._cohort is not None  # the stage was checked
        return self._cohort

    def _pems(self) -> tuple[str, str]:
        masks, shares = (key_bytes(key.public_key()) for key in (self._mask_key, self._share_key))
        return masks.decode(), shares.decode()

    def _token_key(self, cohort: Cohort, peer: str) -> bytes:
        """The key for shares between this hospital and a peer, in Fernet's encoding."""
        return base64.urlsafe_b64encode(self._channel_key(cohort, peer, "shares"))

    def _channel_key(self, cohort: Cohort, peer: str, purpose: str) -> bytes:
        if peer not in self._channels:
            self._channels[peer] = pair_key(
                self._share_key, cohort.keys[peer].shares, "channel", cohort.context
            )
        return derive(self._channels[peer], purpose, cohort.context)

    def _read_token(self, cohort: Cohort, peer: str, token: str) -> tuple[bytes, bytes]:
        """The shares of a peer. That they can be read proves that it was given the same order, cohort and weights."""
        try:
            content = decrypt(self._token_key(cohort, peer), str(token).encode())
        except InvalidToken:
            raise Refused(
                f"the shares of '{peer}' were not made for this hospital, order, cohort and weights"
            ) from None
        try:
            source, target, seed, key = split_shares(content)
        except ValueError:
            raise Refused(f"the shares of '{peer}' cannot be read") from None
        if (source, target) != (cohort.clients.index(peer), cohort.clients.index(self.name)):
            raise Refused(f"the shares of '{peer}' are not from it for this hospital")
        if (len(seed), len(key)) != SHARE_BYTES:
            raise Refused(f"the shares of '{peer}' have another length than shares have")
        return seed, key

    def _tag(self, source: str, target: str) -> str:
        """Says to `target`, on behalf of `source`, who is left. Only these two can make it."""
        cohort, peer = self._agreed(), target if source == self.name else source
        key = self._channel_key(cohort, peer, "confirm")
        told = json.dumps([source, target, sorted(self._shares), list(self._survivors)])
        return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """All that the next stage needs, secrets included, in strings: for the hospital's disk only."""
        cohort = self._cohort
        return {
            "stage": self.stage,
            "order": self.order,
            "mask_key": _secret(self._mask_key).hex(),
            "share_key": _secret(self._share_key).hex(),
            "seed": self._seed.hex(),
            "cohort": None if cohort is None else cohort.to_plain(),
            "shares": {peer: [part.hex() for part in parts] for peer, parts in self._shares.items()},
            "survivors": list(self._survivors),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, where another process answered the stages before."""
        self.stage, self.order = state["stage"], state["order"]
        self._mask_key = key_from_secret(bytes.fromhex(state["mask_key"]))
        self._share_key = key_from_secret(bytes.fromhex(state["share_key"]))
        self._seed = bytes.fromhex(state["seed"])
        self._cohort = None if state["cohort"] is None else Cohort.from_plain(state["cohort"], self.order)
        self._shares = {
            peer: (bytes.fromhex(seed), bytes.fromhex(key)) for peer, (seed, key) in state["shares"].items()
        }
        self._survivors = tuple(state["survivors"])


def pair_key(key: ec.EllipticCurvePrivateKey, public: str, purpose: str, context: bytes) -> bytes:
    """The key of two hospitals, from the private key of one and the public key of the other (ECDH)."""
    return derive(shared_key(key, read_public_key(public)), purpose, context)


def pair_mask(
    key: ec.EllipticCurvePrivateKey, own: str, peer: str, public: str, context: bytes, length: int
) -> np.ndarray:
    """What a hospital adds for a peer; the peer adds the negative of it."""
    stream = mask_stream(pair_key(key, public, "pair mask", context), length)
    return stream if own < peer else np.negative(stream)


def key_from_secret(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """The private key with this secret number; `Refused` where it is none."""
    try:
        return ec.derive_private_key(int.from_bytes(secret, "big"), CURVE)
    except ValueError:
        raise Refused("not the secret of a key") from None


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_numbers().private_value.to_bytes(SECRET_BYTES, "big")
