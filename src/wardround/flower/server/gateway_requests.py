"""What the gateway reads of an ASGI request, and how it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

__all__ = [
    "Answer",
    "Headers",
    "Receive",
    "Send",
    "TooLarge",
    "hung_up",
    "read_body",
    "respond",
    "send_answer",
    "words",
]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Answer(NamedTuple):
    """What the SuperLink says to a request."""

    status: int
    headers: Headers
    body: bytes


class TooLarge(Exception):
    """A request is larger than it may be."""


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """A request's body. Its length is checked before the first byte of it is read."""
    try:
        length = int(headers[b"content-length"])
    except (KeyError, ValueError):
        raise TooLarge("a request that does not say how long it is") from None
    if not 0 <= length <= limit:
        raise TooLarge(f"a request of {length} bytes; {limit} are allowed here")
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the SuperNode has hung up")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def hung_up(receive: Receive, waiting: Awaitable[None]) -> bool:
    """Wait; return True as soon as the other side has hung up."""
    hangs_up, waits = asyncio.ensure_future(receive()), asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({hangs_up, waits}, return_when=asyncio.FIRST_COMPLETED)
        return not waits.done()
    finally:
        hangs_up.cancel()
        waits.cancel()


def words(status: int, detail: str) -> tuple[Headers, bytes]:
    """Headers and body in the form of Flower's own errors, so that a SuperNode logs the reason."""
    content = json.dumps({"code": status, "detail": detail}).encode()
    return [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())], content


async def respond(send: Send, status: int, detail: str) -> None:
    """Refuse a request."""
    await send_answer(send, Answer(status, *words(status, detail)))


async def send_answer(send: Send, answer: Answer) -> None:
    """Answer a request."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
