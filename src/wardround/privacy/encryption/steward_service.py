"""The steward as a process of its own: a small HTTP service that answers one authenticated server."""

from __future__ import annotations

import ipaddress
import ssl
import sys
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from wardround.errors import ConfigError, WardroundError
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.encryption.steward import Steward
from wardround.privacy.encryption.wire import (
    HEADERS,
    PROOF,
    Doorkeeper,
    NotAuthentic,
    answer_proof,
    pack_message,
    unpack_message,
)

__all__ = ["LONGEST_MESSAGE", "StewardService"]

LONGEST_MESSAGE = 8 * 2**30
PATIENCE = 60.0
"""Seconds without a byte after which a connection is given up."""


class StewardService(ThreadingHTTPServer):
    """Serves a steward. Anything but loopback needs TLS: opened sums travel here."""

    daemon_threads = True

    def __init__(
        self,
        steward: Steward,
        key: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        certificate_key: Path | None = None,
    ) -> None:
        if certificate is None and not _loopback(host):
            raise ConfigError(f"{host} is not loopback: give --certificate (TLS), or bind to 127.0.0.1")
        self.steward, self.doorkeeper = steward, Doorkeeper(key)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror})") from None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                context.load_cert_chain(certificate, certificate_key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"{certificate}: not a certificate with its key ({error})") from None
            # The handshake is left to the connection's own thread: a slow one must not keep others waiting.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "http" if certificate is None else "https"
        self.address = f"{scheme}://{host}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up or speaks no TLS costs its connection only, without a traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: StewardService
    timeout = PATIENCE
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        status, answer, nonce = 200, b"", ""
        try:
            headers = {name: self.headers.get(name) or "" for name in HEADERS}
            nonce = self.server.doorkeeper.admit(self.path, headers)
            body = self._body()
            self.server.doorkeeper.check_body(headers, body)
            answer = _answer(self.server.steward, self.path, body)
        except NotAuthentic as error:
            status, answer = 401, pack_message({"error": str(error)})
            self.server.steward.log(
                {"kind": "request", "refused": str(error), "from": self.client_address[0]}
            )
            self.close_connection = True  # its body may still be on the way
        except Refused as error:
            spent = isinstance(error, KeysSpent)
            status, answer = 403, pack_message({"error": str(error), "client": error.client, "spent": spent})
        except WardroundError as error:
            status, answer = 400, pack_message({"error": str(error)})
            self.close_connection = True
        except OSError:
            raise  # the connection broke: there is nobody to answer
        except Exception as error:  # a defect costs this request, not the steward
            traceback.print_exc()
            status, answer = 500, pack_message({"error": f"{type(error).__name__}, see the steward's output"})
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header(PROOF, answer_proof(self.server.doorkeeper.key, nonce, status, answer))
        self.end_headers()
        self.wfile.write(answer)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or int(length) > LONGEST_MESSAGE:
            raise WardroundError("a request needs a Content-Length of at most 8 GiB")
        return self.rfile.read(int(length))

    def log_message(self, format: str, *args: Any) -> None:
        """Openings have a log of their own."""


def _answer(steward: Steward, path: str, body: bytes) -> bytes:
    head, blobs = unpack_message(body)
    answers: dict[str, Callable[[], bytes]] = {
        "/context": lambda: _context(steward),
        "/sum": lambda: _vector(
            steward.open_padded_sum(head["round"], head["order"], head["coefficients"], blobs[0])
        ),
        "/measure": lambda: _measured(steward, head, blobs),
        "/measured-sum": lambda: _vector(
            steward.open_measured_sum(head["round"], head["order"], head["coefficients"])
        ),
    }
    if path not in answers:
        raise WardroundError(f"the steward has no {path}; it has {', '.join(answers)}")
    try:
        return answers[path]()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise WardroundError(f"not a request for {path} ({problem})") from None


def _context(steward: Steward) -> bytes:
    cipher, content = steward.public_context()
    return pack_message({"cipher": cipher}, [content])


def _measured(steward: Steward, head: dict[str, Any], blobs: list[bytes]) -> bytes:
    deposits = dict(zip(head["clients"], blobs, strict=True))
    if len(deposits) != len(blobs):
        raise WardroundError("a client has one deposit a round")
    measured = steward.measure(head["round"], head["order"], deposits)
    return pack_message({"scalars": {client: [m.norm, m.cosine] for client, m in measured.items()}})


def _vector(values: np.ndarray) -> bytes:
    return pack_message({}, [values.astype("<f8").tobytes()])


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
