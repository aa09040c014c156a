"""Serve the live page until Ctrl-C."""

from __future__ import annotations

import errno
import socket
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
) -> None:
    """Serve the page for these folders; `ready` is called with its address."""
    require("starlette", "live")
    uvicorn = require("uvicorn", "live")
    if token is not None and not token.strip():
        raise ConfigError("--token: is empty; give a secret of your own")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines could reach the page; add --token SECRET, or leave --host 127.0.0.1"
        )
    from wardround.live.application import LivePage

    with _listener(host, port) as listener:
        port = listener.getsockname()[1]
        page = LivePage(roots, Access(host, token, names), port)

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
            timeout_graceful_shutdown=3,
        )
        shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{port}/")
        Server(config).run(sockets=[listener])


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
