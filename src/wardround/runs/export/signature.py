"""Signatures of exported models: by the server's key, checked against the authority that hospitals trust.

The key is that of the server's TLS certificate (`federation.certificate_key`). What is signed begins with words of its
own, so that no signature of one purpose can be used for the other.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, DataError, require
from wardround.runs.export.manifest import SIGNATURE

__all__ = ["sign", "verify"]

PURPOSE = b"wardround model manifest 1\n"
ALGORITHM = "ECDSA-SHA256"


def sign(manifest: bytes, key: Path, certificate: Path) -> bytes:
    """The content of signature.json.

    Args:
        manifest: the bytes of manifest.json.
        key: the server's private key (PEM).
        certificate: its certificate (PEM), which goes with the signature.
    """
    crypto = _Crypto()
    try:
        private = crypto.serialization.load_pem_private_key(key.read_bytes(), None)
        signer = crypto.x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{key} or {certificate}: cannot be read ({error})") from None
    if (
        not isinstance(private, crypto.ec.EllipticCurvePrivateKey)
        or private.public_key() != signer.public_key()
    ):
        raise ConfigError(f"{key}: not the elliptic curve key of {certificate}")
    signature = private.sign(PURPOSE + manifest, crypto.ec.ECDSA(crypto.hashes.SHA256()))
    values = {
        "algorithm": ALGORITHM,
        "signature": base64.b64encode(signature).decode(),
        "certificate": signer.public_bytes(crypto.serialization.Encoding.PEM).decode(),
    }
    return (json.dumps(values, indent=2) + "\n").encode()


def verify(manifest: bytes, signature: bytes | None, authority: Path, now: dt.datetime | None = None) -> str:
    """Check a signature; returns whom the certificate names.

    Args:
        manifest: the bytes of manifest.json.
        signature: those of signature.json; None where there is none.
        authority: the certificate (PEM) that the signer's must be issued by: `ca.crt` of a federation.
        now: when the certificate must be valid; None: not asked. A model outlives the certificate it was signed with.

    Raises:
        DataError: there is no signature, or it is not the server's.
    """
    crypto = _Crypto()
    if signature is None:
        raise DataError(f"the model has no signature ({SIGNATURE})")
    try:
        issuer = crypto.x509.load_pem_x509_certificate(authority.read_bytes())
    except (ValueError, OSError) as error:
        raise ConfigError(f"{authority}: not a certificate ({error})") from None
    try:
        values = json.loads(signature)
        signer = crypto.x509.load_pem_x509_certificate(values["certificate"].encode())
        content = base64.b64decode(values["signature"], validate=True)
        algorithm = values["algorithm"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise DataError(f"{SIGNATURE}: cannot be read") from None
    key = signer.public_key()
    if algorithm != ALGORITHM or not isinstance(key, crypto.ec.EllipticCurvePublicKey):
        raise DataError(f"{SIGNATURE}: signed by {algorithm!r:.40}, not by {ALGORITHM}")
    try:
        signer.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, crypto.InvalidSignature):
        raise DataError(f"{SIGNATURE}: its certificate is not issued by {authority}") from None
    if now is not None and not signer.not_valid_before_utc <= now <= signer.not_valid_after_utc:
        raise DataError(f"{SIGNATURE}: its certificate is not valid at present")
    if not _is_server(crypto, signer):
        raise DataError(f"{SIGNATURE}: its certificate is not a server's")
    try:
        key.verify(content, PURPOSE + manifest, crypto.ec.ECDSA(crypto.hashes.SHA256()))
    except crypto.InvalidSignature:
        raise DataError(f"{SIGNATURE}: not a signature of this manifest") from None
    return str(signer.subject.rfc4514_string())


def _is_server(crypto: _Crypto, certificate: Any) -> bool:
    """Was it issued for a server, not for something else that the authority may sign?"""
    try:
        usage = certificate.extensions.get_extension_for_class(crypto.x509.ExtendedKeyUsage).value
    except crypto.x509.ExtensionNotFound:
        return False
    return crypto.x509.oid.ExtendedKeyUsageOID.SERVER_AUTH in usage


class _Crypto:
    """The parts of `cryptography` that are used here, imported when they are needed."""

    def __init__(self) -> None:
        require("cryptography", "flower")
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self.x509, self.InvalidSignature = x509, InvalidSignature
        self.hashes, self.serialization, self.ec = hashes, serialization, ec
