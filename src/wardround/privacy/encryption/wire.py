"""Messages between server and steward: a JSON head with byte strings behind it, under a shared key.

A request is signed (HMAC-SHA-256) over its path, the time, a nonce and the hash of its body. A steward takes
each nonce once and no request older than a minute; an answer is signed over the request's nonce. This
authenticates; it does not hide: beyond loopback the connection must be TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from wardround.errors import WardroundError

__all__ = ["Doorkeeper", "NotAuthentic", "answer_proof", "pack_message", "signed_headers", "unpack_message"]

MAX_AGE = 60.0
TIME, NONCE, BODY, PROOF = (f"X-Wardround-{name}" for name in ("Time", "Nonce", "Body", "Proof"))
HEADERS = (TIME, NONCE, BODY, PROOF)
LENGTH = struct.Struct("<Q")


class NotAuthentic(WardroundError):
    """A message that does not come from whom it says, or comes again."""


def pack_message(head: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """One byte string.

    >>> unpack_message(pack_message({"round": 1}, [b"one", b""]))
    ({'round': 1}, [b'one', b''])
    """
    text = json.dumps(head).encode()
    parts = [LENGTH.pack(len(text)), text]
    for blob in blobs:
        parts += [LENGTH.pack(len(blob)), blob]
    return b"".join(parts)


def unpack_message(content: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The head and the byte strings."""
    parts, place = [], 0
    try:
        while place < len(content):
            (size,) = LENGTH.unpack_from(content, place)
            place += LENGTH.size
            if place + size > len(content):
                raise ValueError("cut off")
            parts.append(content[place : place + size])
            place += size
        head = json.loads(parts[0])
        if not isinstance(head, dict):
            raise ValueError("no head")
    except (struct.error, ValueError, IndexError, RecursionError) as error:
        raise WardroundError(f"not a message of this program ({str(error)[:200]})") from None
    return head, parts[1:]


def signed_headers(key: bytes, path: str, body: bytes) -> dict[str, str]:
    """The headers that authenticate a request."""
    values = {TIME: repr(time.time()), NONCE: secrets.token_hex(16), BODY: hashlib.sha256(body).hexdigest()}
    return values | {PROOF: _proof(key, path, values)}


def answer_proof(key: bytes, nonce: str, status: int, body: bytes) -> str:
    """What shows that an answer is the steward's, and to this request."""
    content = f"answer\n{nonce}\n{status}\n{hashlib.sha256(body).hexdigest()}"
    return hmac.new(key, content.encode(), "sha256").hexdigest()


class Doorkeeper:
    """Lets every authentic request in once."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def admit(self, path: str, headers: Mapping[str, str], now: float | None = None) -> str:
        """The request's nonce; raises for a wrong key, an old request, a nonce seen before."""
        now = time.time() if now is None else now
        values = {name: headers.get(name) or "" for name in (TIME, NONCE, BODY)}
        if not hmac.compare_digest(
            _proof(self.key, path, values).encode(), (headers.get(PROOF) or "").encode()
        ):
            raise NotAuthentic("this request is not signed with the server's key")
        if not _age(values[TIME], now) <= MAX_AGE:
            raise NotAuthentic(f"this request is more than {MAX_AGE:g} s old (or a clock is wrong)")
        with self._lock:
            self._seen = {nonce: at for nonce, at in self._seen.items() if now - at <= 2 * MAX_AGE}
            if values[NONCE] in self._seen:
                raise NotAuthentic("this request has been made before: a replay")
            self._seen[values[NONCE]] = now
        return values[NONCE]

    @staticmethod
    def check_body(headers: Mapping[str, str], body: bytes) -> None:
        """The body must be the one that was signed."""
        if hashlib.sha256(body).hexdigest() != headers.get(BODY):
            raise NotAuthentic("the body is not the one that was signed")


def _age(time_header: str, now: float) -> float:
    try:
        return abs(now - float(time_header))
    except ValueError:
        return math.inf


def _proof(key: bytes, path: str, values: Mapping[str, str]) -> str:
    content = "\n".join(["request", path, values[TIME], values[NONCE], values[BODY]])
    return hmac.new(key, content.encode(), "sha256").hexdigest()
