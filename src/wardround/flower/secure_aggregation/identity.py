"""A hospital's registered key, and those of the others: so that a server cannot play hospitals of its own.

The keys are those that hospitals join with. A hospital that was handed the others' public keys (by anybody but the
server) takes part only where everyone in the cohort has signed its keys of the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from wardround.errors import ConfigError
from wardround.flower.certificates import public_keys
from wardround.flower.secure_aggregation.cohort import Cohort, PublicKeys
from wardround.flower.wire import sign, verify_signature
from wardround.privacy.encryption.refusals import Refused

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity:
    """Signs a hospital's keys of a round, and checks those of the others."""

    key: ec.EllipticCurvePrivateKey
    peers: Mapping[str, ec.EllipticCurvePublicKey] | None = None
    """Hospital → its registered public key; None where this hospital does not know them, and so cannot check."""

    @classmethod
    def from_files(cls, key: Path, peers: Path | None = None) -> Identity:
        """The private key of one hospital, and a folder with the public keys of all (`NAME.pub`)."""
        try:
            private = load_ssh_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{key}: not a private key ({error})") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                f"{key}: a hospital's key is an elliptic curve one; make it by `wardround certs`"
            )
        return cls(private, None if peers is None else public_keys(peers))

    def sign(self, name: str, order: str, keys: PublicKeys) -> PublicKeys:
        """The keys with a signature for this order."""
        signature = sign(self.key, _signed(name, order, keys))
        return PublicKeys(keys.masks, keys.shares, signature.hex())

    def check(self, cohort: Cohort) -> None:
        """Raise `Refused` unless every hospital of the cohort is registered and has signed its keys."""
        if self.peers is None:
            return
        for name, keys in cohort.keys.items():
            if name not in self.peers:
                raise Refused(f"'{name}' has no registered key here")
            try:
                signature = bytes.fromhex(keys.signature)
            except ValueError:
                signature = b""
            if not verify_signature(self.peers[name], _signed(name, cohort.order, keys), signature):
                raise Refused(f"the keys of '{name}' are not signed by its registered key")


def _signed(name: str, order: str, keys: PublicKeys) -> bytes:
    return "\n".join(["wardround secure aggregation", order, name, keys.masks, keys.shares]).encode()
