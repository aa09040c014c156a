"""What SuperLink and SuperNodes say to each other: protobuf messages over HTTP, as Flower defines them.

Flower's Python functions behind its programs are private and change with every version. What its programs say to each
other cannot: SuperLinks and SuperNodes of different versions must understand each other. So `wardround` uses Flower's
apps (`flwr.app`, `flwr.serverapp`, `flwr.clientapp`), its programs (`flower-superlink`), and this: requests that are
sent to a SuperLink. Everything that is known of them stands in this file; `tests/flower/test_wire.py` compares it with
the Flower that is installed, and runs against 1.41 and 1.42.

Over the Fleet interface nodes take orders and bring answers, over the Control interface `serve` registers keys and
starts its run. A message is a tree of objects, each under the SHA-256 of its content: the message, its `RecordDict`,
its records.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import importlib.util
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from wardround.errors import WardroundError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from flwr.proto.message_pb2 import Message as FlowerMessage

__all__ = [
    "CONTROL", "FLEET", "KEY_HEADER", "NODE_CALLS", "SELF_REGISTRATION", "SIGNATURE_HEADER", "STAMP_HEADER",
    "Connection", "RefusedRequest", "Signer", "config_record", "import_messages_alone", "key_bytes",
    "read_config_record", "reply_objects", "sign", "verify_signature", "version_headers",
]  # fmt: skip

FLEET, CONTROL = "/v1/fleet/", "/v1/control/"
NODE_CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
    "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
"""The calls of the Fleet interface that a SuperNode makes."""
SELF_REGISTRATION = ("register-node", "unregister-node")
"""Those of a SuperNode without a registered key."""
KEY_HEADER, STAMP_HEADER, SIGNATURE_HEADER = "flwr-public-key", "flwr-timestamp", "flwr-signature"
"""Who sends a request: its public key, the time, and the time signed with the key."""
PROTOBUF = "application/protobuf"
SIGNATURE_SECONDS = 20.0
"""A signature covers the time alone and holds for five minutes; a node makes a new one this often."""
HUNG_UP = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a connection that the other side has closed shows itself; which one depends on how far TLS has got."""
LONGEST_ERROR = 500
HEAD_END, HEAD_SEPARATOR = b"\0", " "
"""An object is a head (type, ids of its children, length of its body), a zero byte and its body."""

Response = TypeVar("Response", bound=Message)


def import_messages_alone() -> None:
    """Let `flwr.proto` be imported without the rest of Flower, in a process that needs nothing else of it.

    When the package `flwr` is imported, it imports its apps, a command line and gRPC: 20 MB that a hospital's node
    would hold for as long as it waits. Does nothing where `flwr` is imported already.
    """
    spec = importlib.util.find_spec("flwr") if "flwr" not in sys.modules else None
    if spec is not None:
        sys.modules["flwr"] = importlib.util.module_from_spec(spec)  # not executed


class RefusedRequest(WardroundError):
    """The other side has refused a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Connection:
    """Requests to one address over one connection that is kept open. Not for several threads.

    Args:
        address: Host and port.
        authority: Certificate of the authority that signed the server's; None: no TLS.
        headers: Gives the headers of each request.
        timeout: Seconds that a request may take.
    """

    def __init__(
        self,
        address: str,
        authority: Path | None,
        headers: Callable[[], Mapping[str, str]],
        timeout: float = 60.0,
    ) -> None:
        self.address, self.headers, self.timeout = address, headers, timeout
        self._context = None if authority is None else ssl.create_default_context(cafile=str(authority))
        self._open: http.client.HTTPConnection | None = None

    def call(self, path: str, request: Message, response_type: type[Response]) -> Response:
        """Send a request and return the response.

        Raises:
            RefusedRequest: The other side says no.
            OSError: It is not there, or does not speak HTTP.
        """
        content = request.SerializeToString(deterministic=True)
        reused = self._open is not None
        try:
            body = self._post(path, content)
        except HUNG_UP:
            if not reused:
                raise
            body = self._post(path, content)  # the other side had closed the idle connection
        response: Response = response_type()
        try:
            response.ParseFromString(body)
        except DecodeError:
            raise RefusedRequest(502, f"{self.address}: its answer to {path} cannot be read") from None
        return response

    def _post(self, path: str, content: bytes) -> bytes:
        if self._open is None:
            self._open = self._connect()
        headers = {"content-type": PROTOBUF, "accept": PROTOBUF, **self.headers()}
        try:
            self._open.request("POST", path, content, headers)
            response = self._open.getresponse()
            body = response.read()
            if response.will_close:
                self.close()
        except http.client.HTTPException as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{self.address}: {type(error).__name__}") from None
        except OSError:
            self.close()
            raise
        if response.status != 200:
            raise RefusedRequest(response.status, _reason(response.status, body))
        return body

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self.address, timeout=self.timeout)
        return http.client.HTTPSConnection(self.address, timeout=self.timeout, context=self._context)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None


def _reason(status: int, body: bytes) -> str:
    """Why a request was refused, in the other side's words."""
    try:
        words = json.loads(body)
        found = [words[key] for key in ("message", "public_details", "detail") if words.get(key)]
        text = ": ".join(map(str, found))
    except (ValueError, AttributeError, TypeError):
        text = body[:LONGEST_ERROR].decode(errors="replace")
    return " ".join(text[:LONGEST_ERROR].split()) or f"HTTP status {status}"


def version_headers(component: str) -> dict[str, str]:
    """Which Flower a request comes from."""
    return {
        "flwr-package-name": "flwr",
        "flwr-package-version": version("flwr"),
        "flwr-component-name": component,
    }


class Signer:
    """Signs requests with a node's key. For several threads."""

    def __init__(self, key: EllipticCurvePrivateKey) -> None:
        self._key, self.public = key, key_bytes(key.public_key())
        self._lock, self._made = threading.Lock(), -SIGNATURE_SECONDS
        self._headers: dict[str, str] = {}
        self._versions = version_headers("SuperNode")

    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        with self._lock:
            if time.monotonic() - self._made >= SIGNATURE_SECONDS:
                self._headers, self._made = {**self._versions, **self._sign()}, time.monotonic()
            return self._headers

    def _sign(self) -> dict[str, str]:
        stamp = datetime.now(UTC).isoformat()
        signature = sign(self._key, stamp.encode("ascii"))
        return {
            KEY_HEADER: base64.b64encode(self.public).decode("ascii"),
            STAMP_HEADER: stamp,
            SIGNATURE_HEADER: base64.b64encode(signature).decode("ascii"),
        }


def key_bytes(key: EllipticCurvePublicKey) -> bytes:
    """A public key as a SuperLink knows it (PEM)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Sign with a node's key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return key.sign(content, ECDSA(hashes.SHA256()))


def verify_signature(key: EllipticCurvePublicKey, content: bytes, signature: bytes) -> bool:
    """Was this signed with the key's private half?"""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    try:
        key.verify(signature, content, ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def config_record(values: Mapping[str, bytes]) -> bytes:
    """The object of a `ConfigRecord` that holds byte strings."""
    from flwr.proto.recorddict_pb2 import ConfigRecord, ConfigRecordValue

    items = [
        ConfigRecord.Item(key=key, value=ConfigRecordValue(bytes=value)) for key, value in values.items()
    ]
    return _object("ConfigRecord", (), ConfigRecord(items=items).SerializeToString())


def read_config_record(content: bytes, key: str) -> bytes | str | None:
    """A value of the `ConfigRecord` that an object holds; None if it is another object or has no such value."""
    from flwr.proto.recorddict_pb2 import ConfigRecord

    head, _, body = content.partition(HEAD_END)
    if not head.startswith(b"ConfigRecord "):
        return None
    try:
        record = ConfigRecord.FromString(body)
    except DecodeError:
        return None
    for item in record.items:
        if item.key == key:
            kind = item.value.WhichOneof("value")
            return getattr(item.value, kind) if kind in ("bytes", "string") else None
    return None


def reply_objects(message: FlowerMessage, records: Mapping[str, bytes]) -> tuple[list[str], dict[str, bytes]]:
    """The objects of a reply: ids from the message down to its last record, and id → content.

    Args:
        message: Metadata of the reply, and an error where it has one; its content lies in the records.
        records: Name → object of each record.
    """
    contents: dict[str, bytes] = {}

    def keep(content: bytes) -> str:
        identity = hashlib.sha256(content).hexdigest()
        contents[identity] = content
        return identity

    children: list[str] = []
    below: list[str] = []
    if not message.HasField("error"):
        names = {name: keep(content) for name, content in records.items()}
        below = list(dict.fromkeys(names.values()))
        children = [keep(_object("RecordDict", below, json.dumps(names).encode()))]
    top = keep(_object("Message", children, message.SerializeToString(deterministic=True)))
    return [top, *children, *below], contents


def _object(kind: str, children: list[str] | tuple[str, ...], body: bytes) -> bytes:
    head = HEAD_SEPARATOR.join((kind, ",".join(children), str(len(body))))
    return head.encode() + HEAD_END + body
