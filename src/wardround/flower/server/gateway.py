"""The gateway in front of a SuperLink: hospitals' requests pass, everything else is refused.

A SuperLink serves all its interfaces on one port, and whoever reaches that port may start runs on it, which means: run
code on the server and offer code to every SuperNode. It has no way to serve the SuperNodes' interface alone. So the
SuperLink listens on loopback only, and this gateway faces the network. It terminates TLS, passes the POST requests of
the Fleet interface that SuperNodes make, and checks their signature against the registered keys and their length
before it reads a request's body. Everything else is refused here and never reaches the SuperLink. What is refused is
logged with its address, and counted.

The SuperLink checks each signature again; the gateway only reduces what can reach it.

It also saves the SuperLink work: a question for orders waits here until there are some (`doorbell.py`), and an order
that goes to all hospitals is fetched once. Objects are named by the hash of their content, so that a kept one is right.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import datetime as dt
import ssl
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.errors import ConfigError, WardroundError, require
from wardround.flower.hospital.supervisor import CLOCK_WRONG, NOT_REGISTERED
from wardround.flower.server.doorbell import Doorbell
from wardround.flower.server.gateway_counters import GatewayCounters
from wardround.flower.server.gateway_requests import (
    Answer,
    Receive,
    Send,
    TooLarge,
    hung_up,
    read_body,
    respond,
    send_answer,
    words,
)
from wardround.flower.server.gateway_server import serve_application
from wardround.flower.server.key_folder import INTERVAL, KeyFolder
from wardround.flower.server.refusal_log import RefusalLog
from wardround.flower.server.roster import identity_of_key
from wardround.flower.wire import (
    FLEET,
    KEY_HEADER,
    NODE_CALLS,
    SELF_REGISTRATION,
    SIGNATURE_HEADER,
    STAMP_HEADER,
    key_bytes,
    verify_signature,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["OPEN_PATHS", "Gateway", "serve_gateway"]

Keys = dict[bytes, tuple[str, "EllipticCurvePublicKey"]]

OPEN_PATHS = frozenset(FLEET + call for call in NODE_CALLS)
FORWARDED_HEADERS = {b"content-type", b"content-length", b"content-encoding", b"accept"}
"""Headers that are forwarded in both directions, besides Flower's own."""
MAX_SIGNATURE_AGE, MAX_SIGNATURE_LEAD = dt.timedelta(seconds=300), dt.timedelta(seconds=5)
"""As a SuperLink has it."""
REFUSED = 412
"""The status a SuperLink itself gives an unknown node; a SuperNode would take a 401 as the end of its run."""
LARGEST_CALL = 2**20
"""Bytes of a request that has no content of a message."""
LARGEST_OBJECT = 64 * 2**20
"""Bytes of a part of an answer, until the server app says how large the model is."""
UPSTREAM = 8
"""Connections to the SuperLink."""
CHECKED_SIGNATURES = 4096
KEPT_OBJECTS = 4
LEAST_KEPT = 4096
"""Bytes: smaller objects are not kept."""


class Gateway:
    """An ASGI application that forwards SuperNodes' requests to a SuperLink and refuses all others.

    Args:
        target: Address of the SuperLink.
        authority: Certificate of the authority that signed the SuperLink's; None: no TLS.
        keys: Registered public keys (name → key), or their folder, which may change; None: requests need no signature.
        doorbell_path: Where a server app may ring; None: it cannot, and questions for orders do not wait.
    """

    def __init__(
        self,
        target: str,
        authority: Path | None,
        keys: Mapping[str, EllipticCurvePublicKey] | KeyFolder | None,
        doorbell_path: Path | None = None,
        counters_path: Path | None = None,
    ) -> None:
        httpx = require("httpx", "flower")
        verify = ssl.create_default_context(cafile=str(authority)) if authority else False
        # Few: a SuperLink answers at once, and httpx looks at all its connections for each request.
        limits = httpx.Limits(max_connections=UPSTREAM, max_keepalive_connections=UPSTREAM)
        timeout = httpx.Timeout(300.0, connect=10.0)
        self._client = httpx.AsyncClient(
            base_url=target, verify=verify, limits=limits, timeout=timeout, trust_env=False
        )
        self._errors: tuple[type[Exception], ...] = (httpx.TransportError,)
        self._key_folder = keys if isinstance(keys, KeyFolder) else None
        given = keys.keys if isinstance(keys, KeyFolder) else keys
        self._keys = None if given is None else _by_content(given)
        """Public key as a request names it → hospital and key."""
        self._watcher: asyncio.Task[None] | None = None
        self.counters = GatewayCounters(counters_path)
        more = () if keys is not None else SELF_REGISTRATION
        self._open = OPEN_PATHS | {FLEET + call for call in more}
        self.refusals = RefusalLog()
        self.largest_object = LARGEST_OBJECT
        self.doorbell_path, self.doorbell = doorbell_path, Doorbell(self._set_largest)
        self._checked: OrderedDict[tuple[bytes, bytes, bytes], None] = OrderedDict()
        self._kept: OrderedDict[tuple[int, str], asyncio.Future[Answer]] = OrderedDict()
        self._uploads: dict[str, tuple[str, set[str]]] = {}
        """Identity → the order that it is answering, and the parts of the answer that are still to come."""

    def _look_at_keys(self) -> None:
        """Take over what an operator has changed in the folder of keys."""
        folder = self._key_folder
        if folder is not None and folder.changed():
            before, self._keys = self._keys or {}, _by_content(folder.keys)
            self._checked.clear()
            self.counters.clocks.keep_only(set(folder.keys))
            for public in set(before) - set(self._keys):
                self._shut_out(identity_of_key(public))

    def _shut_out(self, identity: str) -> None:
        """A key was revoked: its question for orders is answered now, and what it was sending is not waited for."""
        self.doorbell.wake(identity)
        order, _ = self._uploads.pop(identity, (None, None))
        if order is not None:
            self.doorbell.tell(abandoned=order)

    async def _watch_keys(self) -> None:
        """Obey at once, even where nobody asks for anything."""
        while True:
            await asyncio.sleep(INTERVAL)
            self._look_at_keys()

    def _set_largest(self, size: int) -> None:
        self.largest_object = size

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":
            return None  # no websockets
        address = (scope.get("client") or ("?",))[0]
        self.counters.write(self.refusals.total)
        path, headers = scope["path"], {name.lower(): value for name, value in scope["headers"]}
        if scope["method"] == "GET" and path == "/health":
            return await send_answer(send, await self._ask(scope, b""))
        if scope["method"] != "POST" or path not in self._open:
            self.refusals.note(address, f"a stranger's request ({scope['method']} {path[:60]!r})")
            return await respond(send, 404, "the gateway lets SuperNodes' requests pass, nothing else")
        reason = self._signature_problem(headers)
        if reason is not None:
            self.refusals.note(address, reason)
            return await respond(send, REFUSED, reason)
        public = _decoded(headers.get(KEY_HEADER.encode(), b""))
        call = path.removeprefix(FLEET)
        limit = self.largest_object if call == "push-object" else LARGEST_CALL
        try:
            body = await read_body(headers, receive, limit)
        except TooLarge as problem:
            self.refusals.note(address, str(problem))
            return await respond(send, 413, str(problem))
        except ConnectionAbortedError:
            return None
        answer = await self._pass_on(call, public, scope, body, receive)
        self.counters.add(len(body), len(answer.body))
        await send_answer(send, answer)
        return None

    def _signature_problem(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return why a request's signature is not accepted, or None; needs only its headers."""
        self._look_at_keys()
        if self._keys is None:
            return None
        try:
            public = base64.b64decode(headers[KEY_HEADER.encode()], validate=True)
            signature = base64.b64decode(headers[SIGNATURE_HEADER.encode()], validate=True)
            stamp = headers[STAMP_HEADER.encode()]
            age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(stamp.decode("ascii"))
        except (KeyError, ValueError, TypeError, binascii.Error):
            return "this request is not signed by a SuperNode"
        if public not in self._keys:
            return NOT_REGISTERED
        hospital, key = self._keys[public]
        if (public, stamp, signature) not in self._checked:
            if not verify_signature(key, stamp, signature):
                return "this request is not signed with the key it names"
            self._checked[public, stamp, signature] = None
            self.counters.clocks.note(hospital, -age.total_seconds())
            while len(self._checked) > CHECKED_SIGNATURES:
                self._checked.popitem(last=False)
        if not -MAX_SIGNATURE_LEAD < age < MAX_SIGNATURE_AGE:
            return f"{CLOCK_WRONG} by {age.total_seconds():.0f} s from the server's, or is a copy; set the clocks (NTP)"
        return None

    async def _pass_on(
        self, call: str, public: bytes, scope: dict[str, Any], body: bytes, receive: Receive
    ) -> Answer:
        """What a registered node gets to hear."""
        identity = identity_of_key(public)
        waits = call == "pull-messages" and self.doorbell_path is not None
        if waits and await hung_up(receive, self.doorbell.wait_for_orders(identity)):
            return Answer(499, [], b"")
        if self._keys is not None and public not in self._keys:  # revoked since the request began
            return Answer(REFUSED, *words(REFUSED, NOT_REGISTERED))
        if call == "pull-object":
            return await self._pull_object(scope, body)
        elif call == "push-messages":
            return await self._push_message(identity, scope, body)
        answer = await self._ask(scope, body)
        if call == "push-object" and answer.status == 200:
            self._arrived(identity, body)
        return answer

    async def _pull_object(self, scope: dict[str, Any], body: bytes) -> Answer:
        """An object, fetched once for all who ask for it."""
        from flwr.proto.message_pb2 import PullObjectRequest
        from google.protobuf.message import DecodeError

        try:
            asked = PullObjectRequest.FromString(body)
        except DecodeError:
            return await self._ask(scope, body)
        key = (int(asked.run_id), str(asked.object_id))
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = asyncio.ensure_future(self._ask(scope, body))
        answer = await asyncio.shield(kept)
        if answer.status != 200 or len(answer.body) < LEAST_KEPT:
            self._kept.pop(key, None)
            return answer if answer.status == 200 else await self._ask(scope, body)
        while len(self._kept) > KEPT_OBJECTS:
            self._kept.popitem(last=False)
        return answer

    async def _push_message(self, identity: str, scope: dict[str, Any], body: bytes) -> Answer:
        """An answer begins to arrive: remember which parts of it are still to come."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
        from google.protobuf.message import DecodeError

        try:
            orders = [
                m.metadata.reply_to_message_id for m in PushMessagesRequest.FromString(body).messages_list
            ]
        except DecodeError:
            orders = []
        for order in orders:
            self.doorbell.tell(answering=order)
        answer = await self._ask(scope, body)
        if answer.status == 200 and orders:
            expected = set(PushMessagesResponse.FromString(answer.body).objects_to_push)
            self._uploads[identity] = (orders[0], expected)
            self._ring_if_complete(identity)
        return answer

    def _arrived(self, identity: str, body: bytes) -> None:
        from flwr.proto.message_pb2 import PushObjectRequest

        if identity in self._uploads:
            self._uploads[identity][1].discard(str(PushObjectRequest.FromString(body).object_id))
            self._ring_if_complete(identity)

    def _ring_if_complete(self, identity: str) -> None:
        order, missing = self._uploads[identity]
        if not missing:
            del self._uploads[identity]
            self.doorbell.tell(answered=order)

    async def _ask(self, scope: dict[str, Any], body: bytes) -> Answer:
        """What the SuperLink says."""
        try:
            response = await self._client.request(
                scope["method"],
                scope["path"],
                headers=[pair for pair in scope["headers"] if _is_forwarded(pair[0])],
                content=body or None,
            )
        except self._errors:
            return Answer(502, *words(502, "the SuperLink is not there"))  # SuperNodes wait and try again
        head = [pair for pair in response.headers.raw if _is_forwarded(pair[0])]
        return Answer(response.status_code, head, response.content)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._watcher = asyncio.ensure_future(self._watch_keys())
                if self.doorbell_path is not None:
                    await self.doorbell.listen(self.doorbell_path)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                if self._watcher is not None:
                    self._watcher.cancel()
                self.refusals.flush()
                self.counters.write(self.refusals.total, now=True)
                self.doorbell.close()
                await self._client.aclose()
                return


def _by_content(keys: Mapping[str, EllipticCurvePublicKey]) -> Keys:
    return {key_bytes(key): (name, key) for name, key in keys.items()}


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _is_forwarded(name: bytes) -> bool:
    name = name.lower()
    return name in FORWARDED_HEADERS or name.startswith(b"flwr-")


def serve_gateway(
    host: str,
    port: int,
    target: str,
    certificate: Path | None,
    certificate_key: Path | None,
    authority: Path | None,
    node_keys: Path | None,
    doorbell: Path | None = None,
    counters: Path | None = None,
) -> None:
    """Serve until stopped. Without a certificate there is no TLS; without `node_keys` anyone may join."""
    try:
        keys = KeyFolder(node_keys) if node_keys else None
        gateway = Gateway(target, authority, keys, doorbell, counters)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{authority}: not a certificate ({error})") from None
    serve_application(gateway, host, port, certificate, certificate_key, gateway.refusals)


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
    parser.add_argument("--doorbell", type=Path, help="the Unix socket on which server apps ring")
    parser.add_argument("--counters", type=Path, help="where it writes what it has counted (JSON)")
    options = parser.parse_args(arguments)
    try:
        serve_gateway(
            options.host, options.port, options.to, options.certificate, options.certificate_key,
            options.root_certificates, options.node_keys, options.doorbell, options.counters,
        )  # fmt: skip
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
