"""The keys of a federation: its certificate authority, the server's certificate and the hospitals' keys.

The authority and the server use EC P-256. A hospital's key is EC P-384 in OpenSSH's format, because that is what a
SuperNode reads. Only their owner can read private keys, and no file is overwritten without `force`.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wardround.errors import ConfigError, require
from wardround.files import make_private_folder, replace_file

__all__ = ["KeyFiles", "make_node_keys", "make_server_certificate", "public_keys", "readable_file"]

require("cryptography", "flower")

from cryptography import x509  # noqa: E402
from cryptography.exceptions import UnsupportedAlgorithm  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: E402

AUTHORITY_DAYS = 3650
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Always in the server's certificate: its own processes connect through these."""
CLOCK_SKEW = dt.timedelta(hours=1)
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True)
class KeyFiles:
    """The files in a folder of keys."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate; every hospital gets a copy."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The authority's private key, which signs certificates; keep it offline."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key; it stays at the server."""
        return self.folder / "server.key"

    @property
    def nodes(self) -> Path:
        """The hospitals' keys: the private NAME belongs to the hospital, the public NAME.pub to the server."""
        return self.folder / "nodes"


def make_server_certificate(
    folder: Path, hosts: Sequence[str], days: int = 825, force: bool = False
) -> list[Path]:
    """Write a certificate for a server that is reached as any of `hosts`, and an authority if there is none.

    The authority is never replaced, because hospitals trust it. Remove `ca.crt` and `ca.key` to make a new one.

    Returns:
        The paths that were written.
    """
    files = KeyFiles(folder)
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    written = []
    if files.authority.exists() != files.authority_key.exists():
        raise ConfigError(f"{folder}: ca.crt and ca.key belong together, but one is missing")
    _refuse_to_overwrite([files.server, files.server_key], force)
    if not files.authority.exists():
        _make_authority(files)
        written += [files.authority, files.authority_key]
    authority, authority_key = _load_authority(files)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        _builder(hosts[0], key, days)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write(files.server_key, _pem(key))
    _write(files.server, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    try:
        make_private_folder(files.nodes)  # where the server puts the hospitals' public keys
    except OSError as error:
        raise ConfigError(f"{files.nodes}: cannot be made ({error.strerror})") from None
    return [*written, files.server, files.server_key]


def make_node_keys(folder: Path, names: Iterable[str], force: bool = False) -> list[Path]:
    """Write a key pair for each hospital into `nodes/` and return the paths."""
    nodes = KeyFiles(folder).nodes
    names = list(dict.fromkeys(names))
    for name in names:
        if not NODE_NAME.fullmatch(name):
            raise ConfigError(f"--node {name!r}: a name has letters, digits and . _ + - only, 80 at most")
    pairs = [(nodes / name, nodes / f"{name}.pub") for name in names]
    _refuse_to_overwrite([path for pair in pairs for path in pair], force)
    for name, (private, public) in zip(names, pairs, strict=True):
        key = ec.generate_private_key(ec.SECP384R1())
        plain = serialization.NoEncryption()
        encoding = serialization.Encoding
        _write(private, key.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, plain))
        line = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write(public, line + f" {name}\n".encode(), mode=0o644)
    return [path for pair in pairs for path in pair]


def public_keys(folder: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """Return the hospitals' public keys in a folder (`NAME.pub`) by name."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; it should hold the hospitals' public keys (NAME.pub)")
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (ValueError, OSError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{path}: not a public key ({error})") from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(
                f"{path}: a SuperNode's key is an elliptic curve one; make it by `wardround certs`"
            )
        twin = next((name for name, other in keys.items() if other == key), None)
        if twin is not None:
            raise ConfigError(f"{path}: the same key as {twin}.pub; every hospital has a key of its own")
        keys[path.stem] = key
    if not keys:
        raise ConfigError(f"{folder}: no public key in it (NAME.pub, one for each hospital)")
    return keys


def _make_authority(files: KeyFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("wardround federation", key, AUTHORITY_DAYS)
    certificate = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wardround federation")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files.authority_key, _pem(key))
    _write(files.authority, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _load_authority(files: KeyFiles) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{files.folder}: ca.crt or ca.key cannot be read ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{files.authority_key}: not the key of {files.authority}")
    if certificate.not_valid_after_utc <= dt.datetime.now(dt.UTC):
        raise ConfigError(f"{files.authority}: expired; remove ca.crt and ca.key to make a new authority")
    return certificate, key


def _builder(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST_NAME.fullmatch(host):
            raise ConfigError(f"--host {host!r}: neither a host name nor an IP address") from None
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _refuse_to_overwrite(paths: Iterable[Path], force: bool) -> None:
    existing = next((path for path in paths if path.exists()), None)
    if existing is not None and not force:
        raise ConfigError(f"{existing}: is there already; --force replaces it")


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file atomically; others can never read it before its mode is set."""
    try:
        make_private_folder(path.parent)
        replace_file(path, content, mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


def readable_file(path: Path | None, key: str) -> Path:
    """Return `path` if it is given and can be read; raise a `ConfigError` that names `key` otherwise."""
    if path is None:
        raise ConfigError(f"{key} is required (make it by `wardround certs`), or use --insecure")
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror})") from None
