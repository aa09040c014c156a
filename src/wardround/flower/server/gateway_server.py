"""The HTTP server under the gateway: uvicorn, which gives those up that do not finish their headers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.errors import require

if TYPE_CHECKING:
    from wardround.flower.server.refusal_log import RefusalLog

__all__ = ["HEADER_SECONDS", "serve_application"]

HEADER_SECONDS = 15.0
"""Time that the headers of a request may take, from the first byte, or from the beginning of a connection."""
MOST_CONNECTIONS = 2000


def protocol_with_deadline(refusals: RefusalLog, seconds: float = HEADER_SECONDS) -> type[Any]:
    """uvicorn's HTTP protocol, with a time limit on headers."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class DeadlineProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start()

        def data_received(self, data: bytes) -> None:
            if self._timer is None and self.cycle_is_over():
                self._start()  # the next request on this connection
            super().data_received(data)
            if not self.cycle_is_over():
                self._cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def cycle_is_over(self) -> bool:
            """Is no request being read or answered?"""
            return self.cycle is None or self.cycle.response_complete

        def _start(self) -> None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if self.cycle_is_over() and not self.transport.is_closing():
                address = (self.client or ("?",))[0]
                refusals.note(str(address), f"a connection without a whole request for {seconds:g} s")
                self.transport.abort()

    return DeadlineProtocol


def serve_application(
    application: Any,
    host: str,
    port: int,
    certificate: Path | None,
    certificate_key: Path | None,
    refusals: RefusalLog,
) -> None:
    """Serve an ASGI application until stopped; without a certificate there is no TLS."""
    uvicorn = require("uvicorn", "flower")
    uvicorn.run(
        application,
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=certificate_key,
        http=protocol_with_deadline(refusals),
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        limit_concurrency=MOST_CONNECTIONS,
    )
