"""Cryptography of secure aggregation: Shamir's shares, encryption between two hospitals, key pairs.

The formats are those of Flower's SecAgg+ (Bonawitz et al., 2017; Bell et al., 2020): a test compares both.
"""

from __future__ import annotations

import base64
import struct

from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_public_key

__all__ = [
    "combine_shares", "create_shares", "decrypt", "encrypt", "join_shares", "new_key", "public_key", "shared_key",
    "split_shares",
]  # fmt: skip

BLOCK = 16
"""Bytes of a secret that are shared at once."""
INDEX = struct.Struct("<I")
PARTIES = struct.Struct("<QQI")
"""Sender, recipient, length of the first share."""


def create_shares(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a secret into shares, any `threshold` of which give it back. Each is its number and one block per block.

    >>> shares = create_shares(b"a secret of any length", 2, 3)
    >>> combine_shares([shares[2], shares[0]])
    b'a secret of any length'
    """
    from Crypto.Protocol.SecretSharing import Shamir
    from Crypto.Util.Padding import pad

    padded = pad(secret, BLOCK)
    shares = [bytearray(INDEX.pack(number + 1)) for number in range(count)]
    for start in range(0, len(padded), BLOCK):
        for number, share in Shamir.split(threshold, count, padded[start : start + BLOCK], ssss=False):
            shares[number - 1] += share
    return [bytes(share) for share in shares]


def combine_shares(shares: list[bytes]) -> bytes:
    """The secret of enough shares.

    Raises:
        ValueError: They are not shares of one secret.
    """
    from Crypto.Protocol.SecretSharing import Shamir
    from Crypto.Util.Padding import unpad

    secret = bytearray()
    for start in range(INDEX.size, len(shares[0]), BLOCK):
        numbered = [(INDEX.unpack_from(share)[0], share[start : start + BLOCK]) for share in shares]
        secret += Shamir.combine(numbered, ssss=False)
    try:
        return unpad(bytes(secret), BLOCK)
    except ValueError:
        raise ValueError("not shares of one secret") from None


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP384R1())


def public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    """The public key in a PEM text.

    Raises:
        ValueError: It holds none, or one of another kind.
    """
    key = load_pem_public_key(pem)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key on an elliptic curve")
    return key


def shared_key(private: ec.EllipticCurvePrivateKey, public: ec.EllipticCurvePublicKey) -> bytes:
    """The key that the owners of two key pairs have in common (ECDH and HKDF), 32 bytes in base64."""
    secret = private.exchange(ec.ECDH(), public)
    return base64.urlsafe_b64encode(HKDF(hashes.SHA256(), 32, salt=None, info=None).derive(secret))


def encrypt(key: bytes, content: bytes) -> bytes:
    """Encrypt and authenticate (Fernet)."""
    return Fernet(key).encrypt(content)


def decrypt(key: bytes, token: bytes) -> bytes:
    """What `encrypt` has encrypted; raises `cryptography.fernet.InvalidToken` if it was changed."""
    return Fernet(key).decrypt(token)


def join_shares(sender: int, recipient: int, first: bytes, second: bytes) -> bytes:
    """Two shares on their way from one hospital to another."""
    return PARTIES.pack(sender, recipient, len(first)) + first + second


def split_shares(content: bytes) -> tuple[int, int, bytes, bytes]:
    """Sender, recipient and the two shares.

    Raises:
        ValueError: `join_shares` has not made this.
    """
    if len(content) < PARTIES.size:
        raise ValueError("not two shares")
    sender, recipient, length = PARTIES.unpack_from(content)
    shares = content[PARTIES.size :]
    return sender, recipient, shares[:length], shares[length:]
