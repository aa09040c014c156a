"""Checks against the other side: is it there, is it the right one, do the clocks agree, does it know this key?"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import re
import socket
import ssl
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path

from wardround.errors import ConfigError, WardroundError
from wardround.flower.config import FederationConfig, HospitalConfig
from wardround.flower.preflight import machine
from wardround.flower.preflight.findings import Findings

__all__ = ["check_gateway", "check_server_reachable", "parse_address"]

TIMEOUT = 15.0
LARGEST_CLOCK_DIFFERENCE = 4.0
"""Seconds; the server refuses signatures from more than 5 s in its future."""
ANY_CALL = "/v1/fleet/get-run"
REFUSED = 412


def parse_address(address: str, path: Path) -> tuple[str, int]:
    """Host and port of a server's address."""
    match = re.fullmatch(r"\[?([^\[\]/]+)\]?:(\d+)", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigError(f"{path}: superlink: {address!r} is no address; for example fed.example.org:8000")
    return match[1], int(match[2])


def check_server_reachable(findings: Findings, config: HospitalConfig, path: Path, insecure: bool) -> None:
    """From a hospital: the server's address, certificate, clock and key list."""
    host, port = parse_address(config.superlink, path)
    authority = None if insecure else config.root_certificates
    with closing(_connect(host, port, authority)) as connection:
        findings.ok("server", f"{config.superlink} answers")
        if authority is not None:
            _note_certificate(findings, connection, config.superlink)
        _note_clock(findings, connection)
    if authority is not None and config.node_key is not None:
        _check_key_is_known(findings, config, host, port, authority)


def check_gateway(findings: Findings, config: FederationConfig, running: bool) -> None:
    """From the server itself: does its gateway answer, with the right certificate?"""
    federation = config.federation
    if not running:
        findings.warn(
            "gateway", "this federation is not running", "run `wardround check --connect` after `serve`"
        )
        return
    host = "127.0.0.1" if federation.host in ("0.0.0.0", "::") else federation.host
    with closing(_connect(host, federation.port, federation.root_certificates)) as connection:
        findings.ok("gateway", f"{host}:{federation.port} answers")
        _note_certificate(findings, connection, f"{host}:{federation.port}")


def _connect(host: str, port: int, authority: Path | None) -> http.client.HTTPConnection:
    """An open connection; raises what is wrong with it."""
    place = f"{host}:{port}"
    connection: http.client.HTTPConnection
    if authority is None:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    else:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (ssl.SSLError, OSError):
            raise ConfigError(f"{authority}: not a certificate (PEM)") from None
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        raise WardroundError(
            f"{place}: its certificate is not signed by {authority}, or not for {host} ({error.verify_message}); "
            f"use the right ca.crt, and a name that was given to `certs --host`"
        ) from None
    except ssl.SSLError as error:
        raise WardroundError(
            f"{place}: does not speak TLS ({error.reason}); is it served with --insecure?"
        ) from None
    except socket.gaierror as error:
        raise WardroundError(f"{place}: no such host ({error.strerror}); check the name") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise WardroundError(
            f"{place}: cannot be reached ({reason}); is the server running, and does the firewall let you out?"
        ) from None
    return connection


def _note_certificate(findings: Findings, connection: http.client.HTTPConnection, place: str) -> None:
    from cryptography import x509

    assert isinstance(connection.sock, ssl.SSLSocket)
    content = connection.sock.getpeercert(binary_form=True)
    assert content is not None  # it was verified
    certificate = x509.load_der_x509_certificate(content)
    renew = "its operator renews it: wardround certs CERTS --host NAME --force"
    machine.note_expiry(findings, "server's certificate", certificate, place, renew)


def _note_clock(findings: Findings, connection: http.client.HTTPConnection) -> None:
    """Compare our clock with the Date of an answer, which has whole seconds."""
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        date = parsedate_to_datetime(answer.headers["Date"])
    except (OSError, http.client.HTTPException, TypeError, ValueError) as error:
        findings.fail(
            "server", f"it does not speak HTTP as a gateway does ({error})", "is the port the right one?"
        )
        return
    if answer.status >= 500:
        findings.warn(
            "server", f"it answers {answer.status}: its SuperLink is not there yet", "wait a moment"
        )
    ahead = (dt.datetime.now(dt.UTC) - date).total_seconds()
    ahead = max(0.0, ahead - 1.0) if ahead > 0 else ahead
    if abs(ahead) > LARGEST_CLOCK_DIFFERENCE:
        where = "ahead of" if ahead > 0 else "behind"
        findings.fail(
            "clocks",
            f"this machine's clock is {abs(ahead):.0f} s {where} the server's",
            "set both right (NTP): the server refuses what is signed in its future",
        )
    else:
        findings.ok("clocks", "they agree")


def _check_key_is_known(
    findings: Findings, config: HospitalConfig, host: str, port: int, authority: Path
) -> None:
    """Make a signed request: what the gateway says to it shows whether it knows this hospital's key."""
    assert config.node_key is not None
    with closing(_connect(host, port, authority)) as connection:
        connection.request("POST", ANY_CALL, body=b"", headers=_signed(config.node_key))
        answer = connection.getresponse()
        text = answer.read(2000).decode(errors="replace")
    detail = re.search(r'"detail": *"([^"]*)"', text)
    reason = detail[1] if detail else text
    # The SuperLink behind the gateway refuses an empty request in its own way: only the gateway speaks of keys.
    if answer.status != REFUSED or not any(word in reason for word in ("registered", "signed", "clock")):
        findings.ok("registration", f"{config.superlink} knows this hospital's key")
        return
    findings.fail(
        "registration",
        f"{config.superlink} refuses this hospital: {reason}",
        f"send {config.node_key}.pub to the server's operator, who puts it into the folder of keys",
    )


def _signed(key_file: Path) -> dict[str, str]:
    """Headers by which a node shows who it is: a time, signed."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    key = load_ssh_private_key(key_file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # it was checked before
    stamp = dt.datetime.now(dt.UTC).isoformat()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }
