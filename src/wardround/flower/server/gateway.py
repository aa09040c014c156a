"""The gateway in front of a SuperLink: hospitals' requests pass, everything else is refused.

A SuperLink 1.41 serves all its interfaces on one port, and whoever reaches that port may start runs on it, which
means: run code on the server and offer code to every SuperNode. It has no way to serve the SuperNodes' interface
alone. So the SuperLink listens on loopback only, and this gateway faces the network. It terminates TLS, passes the
POST requests of the Fleet interface that SuperNodes make, and checks their signature against the registered keys
before it reads a request's body. Everything else is refused here and never reaches the SuperLink.

The SuperLink checks each signature again; the gateway only reduces what can reach it.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import datetime as dt
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.errors import ConfigError, WardroundError, require
from wardround.flower.certificates import public_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["OPEN_PATHS", "Gateway", "serve_gateway"]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

NODE_CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
    "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
SELF_REGISTRATION = ("register-node", "unregister-node")
"""Open only without keys, when SuperNodes register themselves."""
OPEN_PATHS = frozenset(f"/v1/fleet/{call}" for call in NODE_CALLS)
FORWARDED_HEADERS = {b"content-type", b"content-length", b"content-encoding", b"accept"}
"""Headers that are forwarded in both directions, besides Flower's own."""
MAX_SIGNATURE_AGE = dt.timedelta(seconds=360)
NOT_REGISTERED = "this key is not registered with the federation"
REFUSED = 412
"""The status a SuperLink itself gives an unknown node; a SuperNode would take a 401 as the end of its run."""


class Gateway:
    """An ASGI application that forwards SuperNodes' requests to a SuperLink and refuses all others.

    Args:
        target: Address of the SuperLink.
        authority: Certificate of the authority that signed the SuperLink's; None: no TLS.
        keys: Registered public keys (name → key); None: requests need no signature.
    """

    def __init__(
        self, target: str, authority: Path | None, keys: Mapping[str, EllipticCurvePublicKey] | None
    ) -> None:
        httpx = require("httpx", "flower")
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        verify = ssl.create_default_context(cafile=str(authority)) if authority else False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(300.0, connect=10.0)
        self._client = httpx.AsyncClient(
            base_url=target, verify=verify, limits=limits, timeout=timeout, trust_env=False
        )
        self._errors: tuple[type[Exception], ...] = (httpx.TransportError,)
        self._keys = None if keys is None else {public_key_to_bytes(key): key for key in keys.values()}
        more = () if keys is not None else SELF_REGISTRATION
        self._open = OPEN_PATHS | {f"/v1/fleet/{call}" for call in more}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":
            return None  # no websockets
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["method"] == "GET" and scope["path"] == "/health":
            return await self._forward(scope, receive, send)
        if scope["method"] != "POST" or scope["path"] not in self._open:
            return await _respond(send, 404, "the gateway lets SuperNodes' requests pass, nothing else")
        reason = self._signature_problem(headers)
        if reason is not None:
            return await _respond(send, REFUSED, reason)
        return await self._forward(scope, receive, send)

    def _signature_problem(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return why a request's signature is not accepted, or None; needs only its headers."""
        if self._keys is None:
            return None
        from flwr.supercore.primitives.asymmetric import verify_signature

        try:
            key_bytes = base64.b64decode(headers[b"flwr-public-key"], validate=True)
            signature = base64.b64decode(headers[b"flwr-signature"], validate=True)
            stamp = headers[b"flwr-timestamp"]
            age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(stamp.decode("ascii"))
        except (KeyError, ValueError, TypeError, binascii.Error):
            return "this request is not signed by a SuperNode"
        key = self._keys.get(key_bytes)
        if key is None:
            return NOT_REGISTERED
        if abs(age) > MAX_SIGNATURE_AGE:
            return "this request's signature is too old, or a clock is wrong"
        if not verify_signature(key, stamp, signature):
            return "this request is not signed with the key it names"
        return None

    async def _forward(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        started = False
        try:
            request = self._client.build_request(
                scope["method"],
                scope["path"],
                headers=[pair for pair in scope["headers"] if _is_forwarded(pair[0])],
                content=_body(receive) if scope["method"] == "POST" else None,
            )
            response = await self._client.send(request, stream=True)
            try:
                head = [pair for pair in response.headers.raw if _is_forwarded(pair[0])]
                start = {"type": "http.response.start", "status": response.status_code, "headers": head}
                await send(start)
                started = True
                async for part in response.aiter_raw():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                await response.aclose()
        except self._errors:
            if started:
                raise  # the connection is cut, and the SuperNode tries again
            await _respond(send, 502, "the SuperLink is not there")  # SuperNodes wait and try again

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                await self._client.aclose()
                return


def serve_gateway(
    host: str,
    port: int,
    target: str,
    certificate: Path | None,
    certificate_key: Path | None,
    authority: Path | None,
    node_keys: Path | None,
) -> None:
    """Serve until stopped. Without a certificate there is no TLS; without `node_keys` anyone may join."""
    uvicorn = require("uvicorn", "flower")
    try:
        gateway = Gateway(target, authority, public_keys(node_keys) if node_keys else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{authority}: not a certificate ({error})") from None
    uvicorn.run(
        gateway,
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=certificate_key,
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the SuperNode has hung up")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _is_forwarded(name: bytes) -> bool:
    name = name.lower()
    return name in FORWARDED_HEADERS or name.startswith(b"flwr-")


async def _respond(send: Send, status: int, detail: str) -> None:
    # The form of Flower's own errors, so that a SuperNode logs the reason.
    content = json.dumps({"code": status, "detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def main(arguments: list[str] | None = None) -> None:
    """Run the gateway as a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.server.gateway")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True, help="the SuperLink, for example https://127.0.0.1:8001")
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--certificate-key", type=Path)
    parser.add_argument("--root-certificates", type=Path)
    parser.add_argument("--node-keys", type=Path)
    options = parser.parse_args(arguments)
    try:
        serve_gateway(
            options.host, options.port, options.to, options.certificate, options.certificate_key,
            options.root_certificates, options.node_keys,
        )  # fmt: skip
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
