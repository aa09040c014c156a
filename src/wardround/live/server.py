"""Serve the live page until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, require
from wardround.live.access import Access, is_loopback

__all__ = ["watch"]


def watch(
    roots: Sequence[Path],
    host: str,
    port: int,
    token: str | None,
    names: Sequence[str] = (),
    ready: Callable[[str], None] = lambda url: None,
    certificate: Path | None = None,
    certificate_key: Path | None = None,
    insecure: bool = False,
) -> None:
    """Serve the page for these folders.

    Args:
        roots: Run folders, or folders that contain run folders.
        host: The address to bind to; any but loopback needs a token, and a certificate or `insecure`.
        port: 0 for any free one.
        token: The secret that the page asks for; it switches on the actions.
        names: Further host names under which the page may be opened.
        ready: Called with the page's address.
        certificate: TLS certificate (PEM); without one the page speaks plain HTTP.
        certificate_key: Its private key (PEM); None where the certificate's file holds it too.
        insecure: Accept other machines without TLS.
    """
    require("starlette", "live")
    uvicorn = require("uvicorn", "live")
    if token is not None and not token.strip():
        raise ConfigError("--token: is empty; give a secret of your own")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines could reach the page; add --token SECRET, or leave --host 127.0.0.1"
        )
    if certificate is None and certificate_key is not None:
        raise ConfigError("--certificate-key: give the --certificate that it belongs to")
    if certificate is None and not is_loopback(host) and not insecure:
        raise ConfigError(
            f"--host {host}: token and page would cross the network unencrypted; add --certificate and "
            "--certificate-key (TLS), or --insecure where something else encrypts the connection"
        )
    if certificate is not None:
        _check_certificate(certificate, certificate_key)
    from wardround.live.application import LivePage

    with _listener(host, port) as listener:
        port = listener.getsockname()[1]
        page = LivePage(roots, Access(host, token, names), port, tls=certificate is not None)

        class Server(uvicorn.Server):  # type: ignore[name-defined, misc]
            def handle_exit(self, sig: int, frame: Any) -> None:
                page.hub.close()  # otherwise the open streams would keep the server waiting
                super().handle_exit(sig, frame)

        config = uvicorn.Config(
            page.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,  # a header must not decide whose wrong tokens these are
            ssl_certfile=certificate,
            ssl_keyfile=certificate_key,
            timeout_graceful_shutdown=3,
        )
        shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else f"[{host}]" if ":" in host else host
        ready(f"{'http' if certificate is None else 'https'}://{shown}:{port}/")
        Server(config).run(sockets=[listener])


def _check_certificate(certificate: Path, key: Path | None) -> None:
    def no_password() -> str:  # openssl would ask on the terminal
        raise ConfigError(f"{key or certificate}: the private key has a password; give one without")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate}: not a certificate with its key ({error})") from None


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--port {port}: is in use on {host}; choose another, or 0 for any free one"
            ) from None
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror or error})"
        ) from None
    return listener
